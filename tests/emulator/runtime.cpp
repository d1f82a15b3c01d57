// libcudart.so.13: the functions of the CUDA runtime that TVM and graphgrad call. All streams are
// one, and each call has done its work when it returns, but on a stream that is captured.

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "device_memory.h"
#include "graph.h"

using emulator::device_error;
using emulator::host_address;

struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};

namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

// The two libraries number their errors alike.
cudaError_t finish(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t finish(CUresult error) { return finish(static_cast<cudaError_t>(error)); }

bool is_side(const void* address, std::size_t bytes, bool device) {
  return (host_address(address, bytes) != nullptr) == device;
}

// An address on the side of a copy that its kind says, as the host sees it; null if it is not.
const void* side_of_copy(const void* address, std::size_t bytes, bool device) {
  if (!is_side(address, bytes, device)) return nullptr;
  return device ? host_address(address, bytes) : address;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, bool to_device, bool from_device) {
  if (device_error()) return finish(device_error());
  if (!bytes) return cudaSuccess;
  const void* target = side_of_copy(to, bytes, to_device);
  const void* source = side_of_copy(from, bytes, from_device);
  if (target && source) {
    std::memmove(const_cast<void*>(target), source, bytes);
    return cudaSuccess;
  }
  emulator::say("a copy of %zu bytes from %p (%s) to %p (%s) is outside of that memory", bytes, from,
                from_device ? "device" : "host", to, to_device ? "device" : "host");
  return finish(cudaErrorInvalidValue);
}

// A copy on a stream. One between host and device cannot be part of a graph here: on a real device
// it may be, from and to memory that is locked for good.
cudaError_t copy_in_turn(void* to, const void* from, std::size_t bytes, bool to_device,
                         bool from_device, cudaStream_t stream) {
  if (!emulator::is_captured(stream)) {
    if (!stream && !emulator::may_wait("a copy on the default stream"))
      return finish(cudaErrorStreamCaptureImplicit);
    return copy(to, from, bytes, to_device, from_device);
  }
  if (!to_device || !from_device) return finish(emulator::spoil("a copy to or from the host"));
  emulator::record([=] {
    return static_cast<CUresult>(copy(to, from, bytes, to_device, from_device));
  });
  return cudaSuccess;
}

bool attribute(cudaDeviceAttr attribute, int& value) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: value = 1024; return true;
    case cudaDevAttrMaxBlockDimX: value = 1024; return true;
    case cudaDevAttrMaxBlockDimY: value = 1024; return true;
    case cudaDevAttrMaxBlockDimZ: value = 64; return true;
    case cudaDevAttrMaxSharedMemoryPerBlock: value = 48 << 10; return true;
    case cudaDevAttrWarpSize: value = 32; return true;
    case cudaDevAttrMultiProcessorCount: value = 1; return true;
    case cudaDevAttrMaxRegistersPerBlock: value = 65536; return true;
    case cudaDevAttrL2CacheSize: value = 1 << 20; return true;
    case cudaDevAttrClockRate: value = 1000000; return true;
    case cudaDevAttrComputeCapabilityMajor: value = emulator::capability() / 10; return true;
    case cudaDevAttrComputeCapabilityMinor: value = emulator::capability() % 10; return true;
    default: return false;
  }
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureImplicit: return "cudaErrorStreamCaptureImplicit";
    default: return "unrecognized error code";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  const char* text;
  cuGetErrorString(static_cast<CUresult>(error), &text);
  return text;
}

cudaError_t cudaPeekAtLastError() {
  return device_error() ? static_cast<cudaError_t>(device_error()) : last_error;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulator::device_count();
  return finish(*count ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return finish(device_error());
}

cudaError_t cudaSetDevice(int device) {
  if (!emulator::device_count()) return finish(cudaErrorNoDevice);
  if (device < 0 || device >= emulator::device_count()) return finish(cudaErrorInvalidDevice);
  current_device = device;
  return finish(device_error());
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  if (device >= emulator::device_count()) return finish(cudaErrorInvalidDevice);
  return finish(attribute(which, *value) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device >= emulator::device_count()) return finish(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  cuDeviceGetName(properties->name, sizeof properties->name, device);
  std::size_t available;
  emulator::memory_info(&available, &properties->totalGlobalMem);
  properties->major = emulator::capability() / 10;
  properties->minor = emulator::capability() % 10;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  emulator::memory_info(available, total);
  return finish(device_error());
}

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (device_error()) return finish(device_error());
  if (!emulator::may_wait("cudaMalloc")) return finish(cudaErrorStreamCaptureUnsupported);
  return finish(emulator::allocate(address, bytes));
}

cudaError_t cudaFree(void* address) {
  if (device_error()) return finish(device_error());
  if (!emulator::may_wait("cudaFree")) return finish(cudaErrorStreamCaptureUnsupported);
  return finish(emulator::release(address));
}

cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
  *address = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return finish(*address ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return copy_in_turn(to, from, bytes, to_device, from_device, stream);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return copy_in_turn(to, from, bytes, true, true, stream);
}

// Streams and events.

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = reinterpret_cast<cudaStream_t>(new char);  // another address for each
  return finish(device_error());
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<char*>(stream);
  return finish(device_error());
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  if (!emulator::may_wait("cudaStreamSynchronize"))
    return finish(cudaErrorStreamCaptureUnsupported);
  return finish(device_error());
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return finish(device_error());
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{};
  return finish(device_error());
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return finish(device_error());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return finish(device_error());
}

cudaError_t cudaEventSynchronize(cudaEvent_t) { return finish(device_error()); }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return finish(device_error());
}

// Graphs: what is recorded from a stream. An instance of one is a copy.

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return finish(emulator::begin_capture(stream));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return finish(emulator::end_capture(stream, reinterpret_cast<emulator::Graph**>(graph)));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph,
                                 unsigned long long) {
  const auto recorded = reinterpret_cast<const emulator::Graph*>(graph);
  *instance = reinterpret_cast<cudaGraphExec_t>(emulator::copy(recorded));
  return finish(device_error());
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t) {
  if (device_error()) return finish(device_error());
  return finish(emulator::launch(reinterpret_cast<const emulator::Graph*>(instance)));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  emulator::destroy(reinterpret_cast<emulator::Graph*>(graph));
  return finish(device_error());
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  emulator::destroy(reinterpret_cast<emulator::Graph*>(instance));
  return finish(device_error());
}

}  // extern "C"
