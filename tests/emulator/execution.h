// Running the threads of a kernel, on one thread of the host.
#pragma once

#include <cuda.h>

#include "module.h"

namespace emulator {

// What the driver gives to each module that it loads.
extern const Services services;

// Runs all blocks of a launch, in order or, with GRAPHGRAD_EMULATOR_ORDER=reverse, backwards.
CUresult run(const Kernel& kernel, Coordinates& coordinates, void** arguments,
             std::size_t dynamic_shared_bytes);

}  // namespace emulator
