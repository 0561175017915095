#include "runtime/comm/device_plugin.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* plugin_name = "liblockstep_cuda.so";
constexpr const char* plugin_variable = "LOCKSTEP_CUDA_PLUGIN";

/// The plug-in that stands beside this program; empty where none does.
fs::path beside_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path plugin = program.parent_path() / plugin_name;
  return fs::exists(plugin, error) ? plugin : fs::path();
}

/// Which file to load; a bare name is searched for by the loader.
std::string choose_path(const std::string& given) {
  if (!given.empty()) return given;
  const char* const named = std::getenv(plugin_variable);
  if (named != nullptr && *named != '\0') return named;
  const fs::path beside = beside_program();
  return beside.empty() ? plugin_name : beside.string();
}

[[noreturn]] void refuse_to_load(const std::string& path, const std::string& reason) {
  if (path.find('/') == std::string::npos) {
#if LOCKSTEP_CUDA_WAS_BUILT
    throw Error(ErrorKind::usage,
                text("the CUDA half of this program was not found (", reason, "): put ", plugin_name,
                     " of the same build beside the program, or name it in ", plugin_variable));
#else
    throw Error(ErrorKind::usage,
                "this program was built without CUDA (-DLOCKSTEP_CUDA=ON needs a CUDA toolkit, NCCL "
                "and a LibTorch with CUDA): build it with the preset `cuda`, or train with "
                "--device cpu");
#endif
  }
  throw Error(ErrorKind::usage, text("the CUDA half of this program, ", path, ", could not be loaded (", reason,
                                     "): let examples/setup.sh --cuda put there what is missing, or train with "
                                     "--device cpu"));
}

}  // namespace

bool DevicePlugin::is_expected() {
  const char* const named = std::getenv(plugin_variable);
  return LOCKSTEP_CUDA_WAS_BUILT || (named != nullptr && *named != '\0');
}

DevicePlugin DevicePlugin::load(const std::string& given) {
  const std::string path = choose_path(given);
  // Global: LibTorch's libraries find each other's symbols as if the program had been linked with them.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    refuse_to_load(path, reason != nullptr ? reason : "no reason was given");
  }
  using Entry = const DevicePluginTable*();
  auto* const entry = reinterpret_cast<Entry*>(dlsym(library, "lockstep_device_plugin"));
  if (entry == nullptr) {
    throw Error(ErrorKind::usage, text(path,
                                       " is not a plug-in of Lockstep (it has no lockstep_device_plugin): name "
                                       "the liblockstep_cuda.so of this build in ",
                                       plugin_variable, ", or none"));
  }
  const DevicePluginTable* const table = entry();
  if (std::string(table->build) != LOCKSTEP_DEVICE_BUILD) {
    throw Error(ErrorKind::usage,
                text(path, " belongs to another build (", table->build, "; this program is ", LOCKSTEP_DEVICE_BUILD,
                     "): build both together, and see what ", plugin_variable, " names"));
  }
  return DevicePlugin(table);
}

}  // namespace lockstep
