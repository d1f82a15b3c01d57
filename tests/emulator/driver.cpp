// libcuda.so.1: the functions of the CUDA driver that TVM calls.

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "device_memory.h"
#include "execution.h"
#include "graph.h"
#include "module.h"

using emulator::Extent;
using emulator::Kernel;

struct CUfunc_st {
  const Kernel* kernel;
  emulator::Coordinates* coordinates;
  std::size_t most_dynamic_shared;
};

struct CUmod_st {
  void* library;
  std::map<std::string, CUfunc_st> functions;
};

namespace {

constexpr std::size_t kMostThreads = 1024, kMostShared = 48 << 10, kMostOptedShared = 227 << 10;
constexpr Extent kMostBlock{1024, 1024, 64};
constexpr Extent kMostGrid{0x7fffffff, 65535, 65535};

struct Name {
  CUresult code;
  const char *name, *text;
};

constexpr Name kNames[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

const Name* name_of(CUresult code) {
  for (const Name& entry : kNames)
    if (entry.code == code) return &entry;
  return nullptr;
}

CUresult refuse(CUresult code, const char* kernel, const char* why) {
  emulator::say("the launch of kernel %s is refused: %s", kernel, why);
  return code;
}

// The compiled kernels, as the emulated nvcc writes them: a line of text, then a shared library.
struct Image {
  char architectures[256];
  std::size_t bytes;
  const char* library;
};

bool read_image(const void* data, Image& image) {
  const char* text = static_cast<const char*>(data);
  int header = 0;
  const int found = std::sscanf(text, "GRAPHGRAD EMULATED %255s %zu%n", image.architectures,
                                &image.bytes, &header);
  image.library = text + header + 1;
  return found == 2;
}

// Code for sm_xy runs on devices of the same x and at least y, for sm_xya on xy alone, and for
// compute_xy on all from xy on.
bool runs_here(const char* architectures) {
  const int device = emulator::capability();
  std::string list = architectures;
  for (char* item = std::strtok(list.data(), ","); item; item = std::strtok(nullptr, ",")) {
    const bool real = !std::strncmp(item, "sm_", 3);
    const int wanted = std::atoi(std::strchr(item, '_') + 1);
    const bool exact = std::isalpha(item[std::strlen(item) - 1]);
    if (wanted == device) return true;
    if (!exact && wanted < device && (!real || wanted / 10 == device / 10)) return true;
  }
  return false;
}

void* load(const Image& image) {
  char path[] = "/tmp/emulated-kernels-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return nullptr;
  std::size_t written = 0;
  while (written < image.bytes) {
    const ssize_t now = write(file, image.library + written, image.bytes - written);
    if (now <= 0) break;
    written += now;
  }
  close(file);
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) emulator::say("%s", dlerror());
  unlink(path);
  return library;
}

bool exceeds(const Extent& extent, const Extent& most) {
  return !extent.count() || extent.x > most.x || extent.y > most.y || extent.z > most.z;
}

CUresult check_launch(const CUfunc_st& function, const Extent& grid, const Extent& block,
                      std::size_t dynamic_shared) {
  const Kernel& kernel = *function.kernel;
  if (exceeds(grid, kMostGrid)) return refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, "its grid");
  if (exceeds(block, kMostBlock) || block.count() > kMostThreads)
    return refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, "its number of threads");
  if (kernel.most_threads && block.count() > kernel.most_threads)
    return refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, kernel.name, "more threads than its bounds");
  if (dynamic_shared > function.most_dynamic_shared - kernel.shared_bytes)
    return refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, "its shared memory");
  return CUDA_SUCCESS;
}

// Replaces the addresses among the arguments of a kernel by those on the host.
CUresult translate(const Kernel& kernel, void** given, std::vector<void*>& addresses,
                   std::vector<void*>& arguments) {
  addresses.resize(kernel.parameters);
  arguments.assign(given, given + kernel.parameters);
  for (int i = 0; i < kernel.parameters; ++i) {
    if (!kernel.is_pointer[i]) continue;
    void* address = *static_cast<void**>(given[i]);
    addresses[i] = address ? emulator::host_address(address, 0) : nullptr;
    if (address && !addresses[i]) {
      emulator::say("kernel %s: parameter %d, %p, is no memory of the device", kernel.name, i,
                    address);
      return emulator::break_device(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    arguments[i] = &addresses[i];
  }
  return CUDA_SUCCESS;
}

CUresult run(CUfunction function, const Extent& grid, const Extent& block, void** parameters,
             std::size_t shared) {
  const Kernel& kernel = *function->kernel;
  std::vector<void*> addresses, arguments;
  if (CUresult error = translate(kernel, parameters, addresses, arguments)) return error;
  function->coordinates->grid_extent = grid;
  function->coordinates->block_extent = block;
  if (CUresult error = emulator::run(kernel, *function->coordinates, arguments.data(), shared))
    return error;
  if (emulator::guards_hold(kernel.name)) return CUDA_SUCCESS;
  return emulator::break_device(CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** text) {
  const Name* entry = name_of(error);
  *text = entry ? entry->name : "unrecognised error";
  return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  const Name* entry = name_of(error);
  *text = entry ? entry->text : "unrecognised error";
  return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (device >= emulator::device_count()) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, length, "graphgrad CUDA emulator");
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* data) {
  if (emulator::device_error()) return emulator::device_error();
  Image image;
  if (!read_image(data, image)) {
    emulator::say("these kernels were not compiled by the emulator's nvcc");
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (!runs_here(image.architectures)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  void* library = load(image);
  if (!library) return CUDA_ERROR_INVALID_IMAGE;
  using Entry = emulator::Module(const emulator::Services*);
  const auto entry = reinterpret_cast<Entry*>(dlsym(library, "emulated_module"));
  const emulator::Module found = entry(&emulator::services);
  *module = new CUmod_st{library, {}};
  for (auto kernel = found.begin; kernel != found.end; ++kernel)
    (*module)->functions[(*kernel)->name] = {*kernel, found.coordinates, kMostShared};
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  dlclose(module->library);
  delete module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const auto found = module->functions.find(name);
  if (found == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
  *function = &found->second;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (value + function->kernel->shared_bytes > kMostOptedShared) return CUDA_ERROR_INVALID_VALUE;
  function->most_dynamic_shared = value + function->kernel->shared_bytes;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void**) {
  if (emulator::device_error()) return emulator::device_error();
  if (config->numAttrs) return CUDA_ERROR_NOT_SUPPORTED;
  const Extent grid{config->gridDimX, config->gridDimY, config->gridDimZ};
  const Extent block{config->blockDimX, config->blockDimY, config->blockDimZ};
  if (CUresult error = check_launch(*function, grid, block, config->sharedMemBytes)) return error;
  const std::size_t shared = config->sharedMemBytes;
  if (!emulator::is_captured(config->hStream)) return run(function, grid, block, parameters, shared);
  // A graph keeps what the arguments were, not where they are. None is longer than an address.
  std::vector<std::uint64_t> values(function->kernel->parameters);
  for (std::size_t i = 0; i < values.size(); ++i)
    std::memcpy(&values[i], parameters[i], sizeof values[i]);
  emulator::record([=] {
    std::vector<std::uint64_t> copies = values;
    std::vector<void*> given;
    for (std::uint64_t& value : copies) given.push_back(&value);
    return run(function, grid, block, given.data(), shared);
  });
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
