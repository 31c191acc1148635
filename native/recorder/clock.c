/* placeholder until the recorder lands */
int xpr_core_version(void);
int xpr_core_version(void) { return 1; }
