// The memory of the emulated device, and the error that the device is in.
//
// An address of the device is a number that the host cannot follow: it lies in a range of addresses
// without memory, never given out twice. So a program that reads device memory on the host faults,
// and an address that was freed is known for what it is.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace emulator {

// Where an address lies on the host; null unless `bytes` from there on belong to one allocation.
void* host_address(const void* address, std::size_t bytes);

CUresult allocate(void** address, std::size_t bytes);
CUresult release(void* address);
void memory_info(std::size_t* available, std::size_t* total);

// Whether all guard zones are as they were; if not, says around which allocation.
bool guards_hold(const char* after);

// The error that no later call gets rid of, as after a fault of a kernel; CUDA_SUCCESS if none.
CUresult device_error();
CUresult break_device(CUresult error);

// Writes a line to standard error: the driver has no other way to say more than a number.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The value of an environment variable.
std::size_t setting(const char* name, std::size_t otherwise);

int device_count();
int capability();  // such as 90

}  // namespace emulator
