// Graphs of work that is recorded on a stream, and done when the graph is launched.
#pragma once

#include <cuda.h>

#include <functional>

namespace emulator {

using Work = std::function<CUresult()>;

// Begins to record what is queued on a stream. There is one capture at a time.
CUresult begin_capture(const void* stream);

bool is_captured(const void* stream);

// Adds work to the capture.
void record(Work work);

// Whether a call that has to wait, to allocate or to free may be made now. If not, the capture is
// spoilt, as on a real device, and its end fails.
bool may_wait(const char* call);

// Spoils the capture: something was called that it cannot hold.
CUresult spoil(const char* call);

// Ends the capture; the graph is null if it was spoilt.
struct Graph;
CUresult end_capture(const void* stream, Graph** graph);
CUresult launch(const Graph* graph);
Graph* copy(const Graph* graph);
void destroy(Graph* graph);

}  // namespace emulator
