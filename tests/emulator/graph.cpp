#include "graph.h"

#include <vector>

#include "device_memory.h"

namespace emulator {

struct Graph {
  std::vector<Work> work;
};

namespace {

const void* captured_stream = nullptr;
Graph* recorded = nullptr;
bool is_spoilt = false;

}  // namespace

CUresult begin_capture(const void* stream) {
  // The stream that all others wait for cannot be recorded.
  if (!stream || captured_stream) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  captured_stream = stream;
  recorded = new Graph;
  is_spoilt = false;
  return CUDA_SUCCESS;
}

bool is_captured(const void* stream) { return stream && stream == captured_stream; }

void record(Work work) { recorded->work.push_back(std::move(work)); }

CUresult spoil(const char* call) {
  say("%s cannot be part of a graph: the capture is spoilt", call);
  is_spoilt = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

bool may_wait(const char* call) {
  if (!captured_stream) return true;
  spoil(call);
  return false;
}

CUresult end_capture(const void* stream, Graph** graph) {
  *graph = nullptr;
  if (!is_captured(stream)) return CUDA_ERROR_INVALID_VALUE;
  captured_stream = nullptr;
  if (is_spoilt) {
    delete recorded;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *graph = recorded;
  return CUDA_SUCCESS;
}

CUresult launch(const Graph* graph) {
  for (const Work& work : graph->work)
    if (CUresult error = work()) return error;
  return CUDA_SUCCESS;
}

Graph* copy(const Graph* graph) { return new Graph(*graph); }

void destroy(Graph* graph) { delete graph; }

}  // namespace emulator
