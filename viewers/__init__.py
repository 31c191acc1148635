"""What people look at: tables in a terminal and the report page. They draw finished tables and compute no answer."""
