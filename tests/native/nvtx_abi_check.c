/* native/device/nvtx_abi.h beside NVTX's own headers: compiles where they agree. */
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtPayload.h>

#include "device/nvtx_abi.h"

#define SAME(ours, our_field, theirs, their_field)                                              \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                \
                       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),    \
                   #our_field)
#define EQUAL(ours, theirs) _Static_assert((uint64_t)(ours) == (uint64_t)(theirs), #ours)

typedef struct xpr_nvtx_attributes attributes;
SAME(attributes, version, nvtxEventAttributes_t, version);
SAME(attributes, bytes, nvtxEventAttributes_t, size);
SAME(attributes, category, nvtxEventAttributes_t, category);
SAME(attributes, color_type, nvtxEventAttributes_t, colorType);
SAME(attributes, color, nvtxEventAttributes_t, color);
SAME(attributes, payload_type, nvtxEventAttributes_t, payloadType);
SAME(attributes, payload_count, nvtxEventAttributes_t, reserved0);
SAME(attributes, payload, nvtxEventAttributes_t, payload);
SAME(attributes, message_type, nvtxEventAttributes_t, messageType);
SAME(attributes, message, nvtxEventAttributes_t, message);
EQUAL(sizeof(attributes), sizeof(nvtxEventAttributes_t));
EQUAL(XPR_NVTX_NO_LEVEL, NVTX_NO_PUSH_POP_TRACKING);
EQUAL(XPR_NVTX_PAYLOAD_UINT64, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64);
EQUAL(XPR_NVTX_PAYLOAD_INT64, NVTX_PAYLOAD_TYPE_INT64);
EQUAL(XPR_NVTX_PAYLOAD_DOUBLE, NVTX_PAYLOAD_TYPE_DOUBLE);
EQUAL(XPR_NVTX_PAYLOAD_UINT32, NVTX_PAYLOAD_TYPE_UNSIGNED_INT32);
EQUAL(XPR_NVTX_PAYLOAD_INT32, NVTX_PAYLOAD_TYPE_INT32);
EQUAL(XPR_NVTX_PAYLOAD_FLOAT, NVTX_PAYLOAD_TYPE_FLOAT);
EQUAL(XPR_NVTX_PAYLOAD_EXTENDED, NVTX_PAYLOAD_TYPE_EXT);
EQUAL(XPR_NVTX_MESSAGE_ASCII, NVTX_MESSAGE_TYPE_ASCII);
EQUAL(XPR_NVTX_MESSAGE_WIDE, NVTX_MESSAGE_TYPE_UNICODE);
EQUAL(XPR_NVTX_MESSAGE_REGISTERED, NVTX_MESSAGE_TYPE_REGISTERED);

EQUAL(XPR_NVTX_TABLE_CALLBACKS, NVTX_ETID_CALLBACKS);
EQUAL(XPR_NVTX_MODULE_CORE, NVTX_CB_MODULE_CORE);
EQUAL(XPR_NVTX_MODULE_CORE2, NVTX_CB_MODULE_CORE2);
EQUAL(XPR_NVTX_MARK_EX, NVTX_CBID_CORE_MarkEx);
EQUAL(XPR_NVTX_START_A, NVTX_CBID_CORE_RangeStartA);
EQUAL(XPR_NVTX_END, NVTX_CBID_CORE_RangeEnd);
EQUAL(XPR_NVTX_PUSH_EX, NVTX_CBID_CORE_RangePushEx);
EQUAL(XPR_NVTX_POP, NVTX_CBID_CORE_RangePop);
EQUAL(XPR_NVTX_NAME_THREAD_W, NVTX_CBID_CORE_NameOsThreadW);
EQUAL(XPR_NVTX_DOMAIN_MARK, NVTX_CBID_CORE2_DomainMarkEx);
EQUAL(XPR_NVTX_DOMAIN_POP, NVTX_CBID_CORE2_DomainRangePop);
EQUAL(XPR_NVTX_REGISTER_STRING_A, NVTX_CBID_CORE2_DomainRegisterStringA);
EQUAL(XPR_NVTX_DOMAIN_CREATE_W, NVTX_CBID_CORE2_DomainCreateW);
EQUAL(XPR_NVTX_INITIALIZE, NVTX_CBID_CORE2_Initialize);
EQUAL(sizeof(struct xpr_nvtx_callbacks), sizeof(NvtxExportTableCallbacks));

EQUAL(XPR_NVTX_SCHEMA_REGISTER, NVTX3EXT_CBID_nvtxPayloadSchemaRegister);
EQUAL(XPR_NVTX_MARK_PAYLOAD, NVTX3EXT_CBID_nvtxMarkPayload);
EQUAL(XPR_NVTX_PUSH_PAYLOAD, NVTX3EXT_CBID_nvtxRangePushPayload);
EQUAL(XPR_NVTX_END_PAYLOAD, NVTX3EXT_CBID_nvtxRangeEndPayload);
EQUAL(XPR_NVTX_DOMAIN_IS_ENABLED, NVTX3EXT_CBID_nvtxDomainIsEnabled);
EQUAL(sizeof(struct xpr_nvtx_module), sizeof(nvtxExtModuleInfo_t));
EQUAL(sizeof(struct xpr_nvtx_segment), sizeof(nvtxExtModuleSegment_t));
SAME(struct xpr_nvtx_module, module, nvtxExtModuleInfo_t, moduleId);
SAME(struct xpr_nvtx_module, segments, nvtxExtModuleInfo_t, segments);
SAME(struct xpr_nvtx_segment, slots, nvtxExtModuleSegment_t, functionSlots);

SAME(struct xpr_nvtx_payload, schema, nvtxPayloadData_t, schemaId);
SAME(struct xpr_nvtx_payload, bytes, nvtxPayloadData_t, size);
SAME(struct xpr_nvtx_payload, payload, nvtxPayloadData_t, payload);
SAME(struct xpr_nvtx_schema_entry, type, nvtxPayloadSchemaEntry_t, type);
SAME(struct xpr_nvtx_schema_entry, name, nvtxPayloadSchemaEntry_t, name);
SAME(struct xpr_nvtx_schema_entry, array_detail, nvtxPayloadSchemaEntry_t, arrayOrUnionDetail);
SAME(struct xpr_nvtx_schema_entry, offset, nvtxPayloadSchemaEntry_t, offset);
EQUAL(sizeof(struct xpr_nvtx_schema_entry), sizeof(nvtxPayloadSchemaEntry_t));
SAME(struct xpr_nvtx_schema, mask, nvtxPayloadSchemaAttr_t, fieldMask);
SAME(struct xpr_nvtx_schema, type, nvtxPayloadSchemaAttr_t, type);
SAME(struct xpr_nvtx_schema, entries, nvtxPayloadSchemaAttr_t, entries);
SAME(struct xpr_nvtx_schema, entry_count, nvtxPayloadSchemaAttr_t, numEntries);
SAME(struct xpr_nvtx_schema, static_bytes, nvtxPayloadSchemaAttr_t, payloadStaticSize);
SAME(struct xpr_nvtx_schema, pack_align, nvtxPayloadSchemaAttr_t, packAlign);
SAME(struct xpr_nvtx_schema, id, nvtxPayloadSchemaAttr_t, schemaId);
EQUAL(XPR_NVTX_HAS_TYPE, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE);
EQUAL(XPR_NVTX_HAS_ENTRIES, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES);
EQUAL(XPR_NVTX_HAS_ENTRY_COUNT, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES);
EQUAL(XPR_NVTX_HAS_STATIC_BYTES, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE);
EQUAL(XPR_NVTX_HAS_PACK_ALIGN, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT);
EQUAL(XPR_NVTX_HAS_SCHEMA_ID, NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID);
EQUAL(XPR_NVTX_SCHEMA_STATIC, NVTX_PAYLOAD_SCHEMA_TYPE_STATIC);
EQUAL(XPR_NVTX_SCHEMA_DYNAMIC, NVTX_PAYLOAD_SCHEMA_TYPE_DYNAMIC);
EQUAL(XPR_NVTX_ENTRY_POINTER, NVTX_PAYLOAD_ENTRY_FLAG_POINTER);
EQUAL(XPR_NVTX_ENTRY_FROM_BASE, NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_BASE);
EQUAL(XPR_NVTX_ENTRY_FROM_HERE, NVTX_PAYLOAD_ENTRY_FLAG_OFFSET_FROM_HERE);
EQUAL(XPR_NVTX_ENTRY_ARRAY_FIXED, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE);
EQUAL(XPR_NVTX_ENTRY_ARRAY_ZERO_ENDED, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_ZERO_TERMINATED);
EQUAL(XPR_NVTX_ENTRY_ARRAY_LENGTH_IN, NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_LENGTH_INDEX);
EQUAL(XPR_NVTX_ENTRY_HIDE, NVTX_PAYLOAD_ENTRY_FLAG_HIDE);
EQUAL(XPR_NVTX_ENTRY_MESSAGE, NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE);
EQUAL(XPR_NVTX_CHAR, NVTX_PAYLOAD_ENTRY_TYPE_CHAR);
EQUAL(XPR_NVTX_ULONGLONG, NVTX_PAYLOAD_ENTRY_TYPE_ULONGLONG);
EQUAL(XPR_NVTX_I8, NVTX_PAYLOAD_ENTRY_TYPE_INT8);
EQUAL(XPR_NVTX_U64, NVTX_PAYLOAD_ENTRY_TYPE_UINT64);
EQUAL(XPR_NVTX_LONGDOUBLE, NVTX_PAYLOAD_ENTRY_TYPE_LONGDOUBLE);
EQUAL(XPR_NVTX_SIZE, NVTX_PAYLOAD_ENTRY_TYPE_SIZE);
EQUAL(XPR_NVTX_ADDRESS, NVTX_PAYLOAD_ENTRY_TYPE_ADDRESS);
EQUAL(XPR_NVTX_CHAR8, NVTX_PAYLOAD_ENTRY_TYPE_CHAR8);
EQUAL(XPR_NVTX_BYTE, NVTX_PAYLOAD_ENTRY_TYPE_BYTE);
EQUAL(XPR_NVTX_FLOAT64, NVTX_PAYLOAD_ENTRY_TYPE_FLOAT64);
EQUAL(XPR_NVTX_CATEGORY, NVTX_PAYLOAD_ENTRY_TYPE_CATEGORY);
EQUAL(XPR_NVTX_TID64, NVTX_PAYLOAD_ENTRY_TYPE_TID_UINT64);
EQUAL(XPR_NVTX_CSTRING, NVTX_PAYLOAD_ENTRY_TYPE_CSTRING);
EQUAL(XPR_NVTX_CSTRING_UTF8, NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8);
EQUAL(XPR_NVTX_REGISTERED, NVTX_PAYLOAD_ENTRY_TYPE_NVTX_REGISTERED_STRING_HANDLE);
EQUAL(XPR_NVTX_FIRST_SCHEMA, NVTX_PAYLOAD_SCHEMA_ID_STATIC_START);
EQUAL(XPR_NVTX_FIRST_DYNAMIC_SCHEMA, NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START);
