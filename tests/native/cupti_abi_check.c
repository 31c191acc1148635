/* Compiles only where the collector's own declarations fit the NVIDIA headers on the include path: the newest struct of each
 * record (its number comes from the test, which reads the header) has the same fields at the same places. */
#include <cuda.h>
#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_version.h>

#include "device/cupti_abi.h"

#define SAME(ours, field, theirs, theirs_field)                                                  \
    _Static_assert(offsetof(struct ours, field) == offsetof(theirs, theirs_field) &&             \
                       sizeof(((struct ours *)0)->field) == sizeof(((theirs *)0)->theirs_field), \
                   #ours "." #field)
#define EQUAL(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)

SAME(ct_kernel, registers, KERNEL, registersPerThread);
SAME(ct_kernel, start, KERNEL, start);
SAME(ct_kernel, end, KERNEL, end);
SAME(ct_kernel, device, KERNEL, deviceId);
SAME(ct_kernel, context, KERNEL, contextId);
SAME(ct_kernel, stream, KERNEL, streamId);
SAME(ct_kernel, grid[0], KERNEL, gridX);
SAME(ct_kernel, grid[2], KERNEL, gridZ);
SAME(ct_kernel, block[0], KERNEL, blockX);
SAME(ct_kernel, block[2], KERNEL, blockZ);
SAME(ct_kernel, static_shared, KERNEL, staticSharedMemory);
SAME(ct_kernel, dynamic_shared, KERNEL, dynamicSharedMemory);
SAME(ct_kernel, correlation, KERNEL, correlationId);
SAME(ct_kernel, name, KERNEL, name);
SAME(ct_kernel, graph_node, KERNEL, graphNodeId);
SAME(ct_kernel, graph, KERNEL, graphId);

SAME(ct_memcpy, copy_kind, MEMCPY, copyKind);
SAME(ct_memcpy, source_kind, MEMCPY, srcKind);
SAME(ct_memcpy, target_kind, MEMCPY, dstKind);
SAME(ct_memcpy, bytes, MEMCPY, bytes);
SAME(ct_memcpy, start, MEMCPY, start);
SAME(ct_memcpy, end, MEMCPY, end);
SAME(ct_memcpy, device, MEMCPY, deviceId);
SAME(ct_memcpy, context, MEMCPY, contextId);
SAME(ct_memcpy, stream, MEMCPY, streamId);
SAME(ct_memcpy, correlation, MEMCPY, correlationId);
SAME(ct_memcpy, graph_node, MEMCPY, graphNodeId);
SAME(ct_memcpy, graph, MEMCPY, graphId);

SAME(ct_memcpy_peer, copy_kind, MEMCPY_PEER, copyKind);
SAME(ct_memcpy_peer, source_kind, MEMCPY_PEER, srcKind);
SAME(ct_memcpy_peer, target_kind, MEMCPY_PEER, dstKind);
SAME(ct_memcpy_peer, bytes, MEMCPY_PEER, bytes);
SAME(ct_memcpy_peer, start, MEMCPY_PEER, start);
SAME(ct_memcpy_peer, end, MEMCPY_PEER, end);
SAME(ct_memcpy_peer, device, MEMCPY_PEER, deviceId);
SAME(ct_memcpy_peer, context, MEMCPY_PEER, contextId);
SAME(ct_memcpy_peer, stream, MEMCPY_PEER, streamId);
SAME(ct_memcpy_peer, source_device, MEMCPY_PEER, srcDeviceId);
SAME(ct_memcpy_peer, target_device, MEMCPY_PEER, dstDeviceId);
SAME(ct_memcpy_peer, correlation, MEMCPY_PEER, correlationId);
SAME(ct_memcpy_peer, graph_node, MEMCPY_PEER, graphNodeId);
SAME(ct_memcpy_peer, graph, MEMCPY_PEER, graphId);

SAME(ct_memset, value, MEMSET, value);
SAME(ct_memset, bytes, MEMSET, bytes);
SAME(ct_memset, start, MEMSET, start);
SAME(ct_memset, end, MEMSET, end);
SAME(ct_memset, device, MEMSET, deviceId);
SAME(ct_memset, context, MEMSET, contextId);
SAME(ct_memset, stream, MEMSET, streamId);
SAME(ct_memset, correlation, MEMSET, correlationId);
SAME(ct_memset, memory_kind, MEMSET, memoryKind);
SAME(ct_memset, graph_node, MEMSET, graphNodeId);
SAME(ct_memset, graph, MEMSET, graphId);

SAME(ct_call, number, CUpti_ActivityAPI, cbid);
SAME(ct_call, start, CUpti_ActivityAPI, start);
SAME(ct_call, end, CUpti_ActivityAPI, end);
SAME(ct_call, process, CUpti_ActivityAPI, processId);
SAME(ct_call, thread, CUpti_ActivityAPI, threadId);
SAME(ct_call, correlation, CUpti_ActivityAPI, correlationId);
SAME(ct_call, result, CUpti_ActivityAPI, returnValue);

SAME(ct_external, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
SAME(ct_external, external_id, CUpti_ActivityExternalCorrelation, externalId);
SAME(ct_external, correlation, CUpti_ActivityExternalCorrelation, correlationId);

SAME(ct_sync, type, SYNC, type);
SAME(ct_sync, start, SYNC, start);
SAME(ct_sync, end, SYNC, end);
SAME(ct_sync, correlation, SYNC, correlationId);
SAME(ct_sync, context, SYNC, contextId);
SAME(ct_sync, stream, SYNC, streamId);

SAME(ct_overhead, overhead_kind, OVERHEAD, overheadKind);
SAME(ct_overhead, object_kind, OVERHEAD, objectKind);
SAME(ct_overhead, object_id[1], OVERHEAD, objectId.pt.threadId);
SAME(ct_overhead, object_id[2], OVERHEAD, objectId.dcs.streamId);
SAME(ct_overhead, start, OVERHEAD, start);
SAME(ct_overhead, end, OVERHEAD, end);

SAME(ct_graph, correlation, GRAPH, correlationId);
SAME(ct_graph, start, GRAPH, start);
SAME(ct_graph, end, GRAPH, end);
SAME(ct_graph, device, GRAPH, deviceId);
SAME(ct_graph, graph, GRAPH, graphId);
SAME(ct_graph, context, GRAPH, contextId);
SAME(ct_graph, stream, GRAPH, streamId);

SAME(ct_device, memory_bandwidth_kbs, DEVICE, globalMemoryBandwidth);
SAME(ct_device, memory_bytes, DEVICE, globalMemorySize);
SAME(ct_device, core_clock_khz, DEVICE, coreClockRate);
SAME(ct_device, multiprocessors, DEVICE, numMultiprocessors);
SAME(ct_device, capability_major, DEVICE, computeCapabilityMajor);
SAME(ct_device, capability_minor, DEVICE, computeCapabilityMinor);
SAME(ct_device, id, DEVICE, id);
SAME(ct_device, uuid, DEVICE, uuid);
SAME(ct_device, name, DEVICE, name);

SAME(ct_resource, context, CUpti_ResourceData, context);
SAME(ct_resource, descriptor, CUpti_ResourceData, resourceDescriptor);
SAME(ct_graph_data, graph, CUpti_GraphData, graph);
SAME(ct_graph_data, original_graph, CUpti_GraphData, originalGraph);
SAME(ct_graph_data, node, CUpti_GraphData, node);
SAME(ct_graph_data, original_node, CUpti_GraphData, originalNode);

#if CUPTI_API_VERSION >= 130000
SAME(ct_subscriber_options, bytes, CUpti_SubscriberParams, structSize);
SAME(ct_subscriber_options, name, CUpti_SubscriberParams, subscriberName);
SAME(ct_subscriber_options, holder, CUpti_SubscriberParams, oldSubscriberName);
SAME(ct_subscriber_options, holder_bytes, CUpti_SubscriberParams, oldSubscriberSize);
EQUAL(CT_HOLDER_BYTES, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN);
#if CUPTI_API_VERSION < 130200
EQUAL(CT_SUBSCRIBER_OPTIONS_13_0, sizeof(CUpti_SubscriberParams));
#endif
#endif
#if CUPTI_API_VERSION >= 130300
SAME(ct_subscriber_options, shared, CUpti_SubscriberParams, allowMultipleSubscribers);
EQUAL(sizeof(struct ct_subscriber_options), sizeof(CUpti_SubscriberParams));
EQUAL(CT_ATTRIBUTE_THREAD_ID_TYPE, CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE);
#endif

EQUAL(CT_OK, CUPTI_SUCCESS);
EQUAL(CT_NO_MORE_RECORDS, CUPTI_ERROR_MAX_LIMIT_REACHED);
EQUAL(CT_NOT_COMPATIBLE, CUPTI_ERROR_NOT_COMPATIBLE);
EQUAL(CT_TAKEN, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
EQUAL(CT_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY);
EQUAL(CT_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MEMSET);
EQUAL(CT_KIND_DRIVER, CUPTI_ACTIVITY_KIND_DRIVER);
EQUAL(CT_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_RUNTIME);
EQUAL(CT_KIND_DEVICE, CUPTI_ACTIVITY_KIND_DEVICE);
EQUAL(CT_KIND_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
EQUAL(CT_KIND_OVERHEAD, CUPTI_ACTIVITY_KIND_OVERHEAD);
EQUAL(CT_KIND_MEMCPY_PEER, CUPTI_ACTIVITY_KIND_MEMCPY2);
EQUAL(CT_KIND_SYNC, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
EQUAL(CT_KIND_EXTERNAL, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
EQUAL(CT_KIND_GRAPH, CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
EQUAL(CT_DOMAIN_DRIVER, CUPTI_CB_DOMAIN_DRIVER_API);
EQUAL(CT_DOMAIN_RUNTIME, CUPTI_CB_DOMAIN_RUNTIME_API);
EQUAL(CT_DOMAIN_RESOURCE, CUPTI_CB_DOMAIN_RESOURCE);
EQUAL(CT_GRAPH_NODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
EQUAL(CT_GRAPH_NODE_CLONED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
EQUAL(CT_EXTERNAL_CUSTOM2, CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2);
EQUAL(CT_OBJECT_THREAD, CUPTI_ACTIVITY_OBJECT_THREAD);
EQUAL(CT_OBJECT_DEVICE, CUPTI_ACTIVITY_OBJECT_DEVICE);
EQUAL(CT_FLUSH_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
EQUAL(CT_THREAD_ID_SYSTEM, CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);

/* The calls, by their types. */
static int (*const get_next)(uint8_t *, size_t, CUpti_Activity **) __attribute__((unused)) = (int (*)(uint8_t *, size_t, CUpti_Activity **))cuptiActivityGetNextRecord;
static void (*const request)(uint8_t **, size_t *, size_t *) __attribute__((unused)) = (CUpti_BuffersCallbackRequestFunc)0;
static void (*const complete)(CUcontext, uint32_t, uint8_t *, size_t, size_t) __attribute__((unused)) = (CUpti_BuffersCallbackCompleteFunc)0;
