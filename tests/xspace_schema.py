"""XSpace and HloProto as protobuf-runtime messages: the independent second opinion that the decoder is tested against.

The field numbers are those of the published formats; the descriptors are built here, at import, so that no generated
code is needed. Only what the project reads is described: every other field lands in the unknown fields, as it would in
any reader built from an older schema.

pytest puts the folder ``tests`` on ``sys.path`` (``pythonpath`` in pyproject.toml), so a test says::

    from xspace_schema import XSpace
    space = XSpace(hostnames=["a"])
    plane = space.planes.add(name="/host:CPU")
    data = space.SerializeToString()
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
    "double": _FIELD.TYPE_DOUBLE,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
}

# message -> fields "number name type", "*" for repeated, "|" for a member of the message's one oneof, "%V" for a map
# from int64 to message V.
_XPLANE = {
    "XSpace": ["1 planes XPlane*", "2 errors string*", "3 warnings string*", "4 hostnames string*"],
    "XPlane": [
        "1 id int64",
        "2 name string",
        "3 lines XLine*",
        "4 event_metadata %XEventMetadata",
        "5 stat_metadata %XStatMetadata",
        "6 stats XStat*",
    ],
    "XLine": [
        "1 id int64",
        "2 name string",
        "3 timestamp_ns int64",
        "4 events XEvent*",
        "9 duration_ps int64",
        "10 display_id int64",
        "11 display_name string",
    ],
    "XEvent": [
        "1 metadata_id int64",
        "2 offset_ps int64|",
        "5 num_occurrences int64|",
        "3 duration_ps int64",
        "4 stats XStat*",
    ],
    "XStat": [
        "1 metadata_id int64",
        "2 double_value double|",
        "3 uint64_value uint64|",
        "4 int64_value int64|",
        "5 str_value string|",
        "6 bytes_value bytes|",
        "7 ref_value uint64|",
    ],
    "XEventMetadata": [
        "1 id int64",
        "2 name string",
        "3 metadata bytes",
        "4 display_name string",
        "5 stats XStat*",
        "6 child_id int64*",
    ],
    "XStatMetadata": ["1 id int64", "2 name string", "3 description string"],
}

_HLO = {
    "HloProto": ["1 hlo_module HloModuleProto", "3 buffer_assignment BufferAssignmentProto"],
    "BufferAssignmentProto": [
        "1 logical_buffers LogicalBufferProto*",
        "3 buffer_allocations BufferAllocationProto*",
        "4 heap_simulator_traces HeapSimulatorTrace*",
    ],
    "LogicalBufferProto": ["1 id int64", "2 size int64", "3 defined_at Location", "4 color int64"],
    "Location": ["3 shape_index int64*", "4 instruction_id int64"],
    "BufferAllocationProto": [
        "1 index int64",
        "2 size int64",
        "3 is_thread_local bool",
        "5 is_entry_computation_parameter bool",
        "6 parameter_number int64",
        "7 maybe_live_out bool",
        "8 color int64",
        "9 assigned Assigned*",
        "11 is_tuple bool",
        "12 is_constant bool",
    ],
    "Assigned": ["1 logical_buffer_id int64", "2 offset int64", "3 size int64"],
    "HeapSimulatorTrace": [
        "1 events HeapEvent*",
        "2 whole_module_simulation bool",
        "3 buffer_allocation_index int64",
    ],
    "HeapEvent": ["1 kind int64", "2 buffer_id int64", "5 share_with_canonical_id int64"],
    "HloScheduleProto": ["1 sequences %InstructionSequence"],
    "InstructionSequence": ["1 instruction_ids int64*"],
    "HloModuleProto": [
        "1 name string",
        "2 entry_computation_name string",
        "6 entry_computation_id int64",
        "3 computations HloComputationProto*",
        "5 id int64",
        "7 schedule HloScheduleProto",
        "15 device_assignment DeviceAssignmentProto",
        "17 stack_frame_index StackFrameIndexProto",
    ],
    "HloComputationProto": [
        "1 name string",
        "2 instructions HloInstructionProto*",
        "5 id int64",
        "6 root_id int64",
    ],
    "HloInstructionProto": [
        "1 name string",
        "2 opcode string",
        "3 shape ShapeProto",
        "7 metadata OpMetadata",
        "8 literal LiteralProto",
        "9 parameter_number int64",
        "11 fusion_kind string",
        "13 tuple_index int64",
        "14 dimensions int64*",
        "15 window Window",
        "16 convolution_dimension_numbers ConvolutionDimensionNumbers",
        "26 channel_id int64",
        "28 custom_call_target string",
        "30 dot_dimension_numbers DotDimensionNumbers",
        "31 fft_type int32",
        "32 fft_length int64*",
        "35 id int64",
        "36 operand_ids int64*",
        "37 control_predecessor_ids int64*",
        "38 called_computation_ids int64*",
        "43 backend_config bytes",
        "49 replica_groups ReplicaGroup*",
        "50 feature_group_count int64",
        "51 precision_config PrecisionConfig",
        "52 source_target_pairs SourceTarget*",
        "58 batch_group_count int64",
        "63 comparison_direction string",
        "87 collective_device_list CollectiveDeviceListProto",
    ],
    "ShapeProto": [
        "2 element_type int32",
        "3 dimensions int64*",
        "4 tuple_shapes ShapeProto*",
        "5 layout LayoutProto",
        "6 is_dynamic_dimension bool*",
    ],
    "LayoutProto": ["1 minor_to_major int64*", "7 element_size_in_bits int64", "8 memory_space int64"],
    "LiteralProto": ["1 shape ShapeProto", "4 s32s int32*", "5 s64s int64*", "7 u64s uint64*"],
    "Window": ["1 dimensions WindowDimension*"],
    "WindowDimension": [
        "1 size int64",
        "2 stride int64",
        "3 padding_low int64",
        "4 padding_high int64",
        "5 window_dilation int64",
        "6 base_dilation int64",
    ],
    "ConvolutionDimensionNumbers": [
        "3 kernel_input_feature_dimension int64",
        "4 kernel_output_feature_dimension int64",
        "6 kernel_spatial_dimensions int64*",
        "7 input_batch_dimension int64",
        "8 input_feature_dimension int64",
        "9 output_batch_dimension int64",
        "10 output_feature_dimension int64",
        "11 input_spatial_dimensions int64*",
        "12 output_spatial_dimensions int64*",
    ],
    "DotDimensionNumbers": [
        "1 lhs_contracting_dimensions int64*",
        "2 rhs_contracting_dimensions int64*",
        "3 lhs_batch_dimensions int64*",
        "4 rhs_batch_dimensions int64*",
    ],
    "PrecisionConfig": ["1 operand_precision int32*", "2 algorithm int32"],
    "ReplicaGroup": ["1 replica_ids int64*"],
    "SourceTarget": ["1 source int64", "2 target int64"],
    "CollectiveDeviceListProto": [
        "1 replica_groups ReplicaGroup*",
        "2 iota_replica_group_list IotaReplicaGroupListProto",
    ],
    "IotaReplicaGroupListProto": [
        "1 num_replica_groups int64",
        "2 num_devices_per_group int64",
        "3 iota_reshape_dims int64*",
        "4 iota_transpose_perm int32*",
    ],
    "DeviceAssignmentProto": ["1 replica_count int32", "2 computation_count int32"],
    "OpMetadata": [
        "1 op_type string",
        "2 op_name string",
        "3 source_file string",
        "4 source_line int32",
        "15 stack_frame_id int32",
    ],
    "StackFrameIndexProto": [
        "1 file_names string*",
        "2 function_names string*",
        "3 file_locations FileLocation*",
        "4 stack_frames StackFrame*",
    ],
    "FileLocation": [
        "1 file_name_id int32",
        "2 function_name_id int32",
        "3 line int32",
        "4 column int32",
        "5 end_line int32",
        "6 end_column int32",
    ],
    "StackFrame": ["1 file_location_id int32", "2 parent_frame_id int32"],
}


def _file(package: str, messages: dict[str, list[str]]) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for entry in fields:
            number, name, kind = entry.split()
            field = described.field.add(name=name, number=int(number), label=_FIELD.LABEL_OPTIONAL)
            if kind.endswith("|"):
                if not described.oneof_decl:
                    described.oneof_decl.add(name="one")
                field.oneof_index = 0
            if kind.endswith("*") or kind.startswith("%"):
                field.label = _FIELD.LABEL_REPEATED
            kind = kind.rstrip("*|")
            if kind.startswith("%"):
                camel = "".join(part.capitalize() for part in name.split("_")) + "Entry"
                nested = described.nested_type.add(name=camel)
                nested.options.map_entry = True
                nested.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_INT64)
                value = nested.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL)
                value.type, value.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind[1:]}"
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{message}.{camel}"
            elif kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
    return file


_pool = descriptor_pool.DescriptorPool()
for _described in (_file("xprof_py_test_xplane", _XPLANE), _file("xprof_py_test_hlo", _HLO)):
    _pool.Add(_described)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))


XSpace: Any = _message("xprof_py_test_xplane.XSpace")
HloProto: Any = _message("xprof_py_test_hlo.HloProto")
