// Files of the machine that `sluice doctor` and `sluice run` look into: a driver library's symbols, the loader's cache.
#include "check.h"
#include "cli/elf_symbols.h"
#include "cli/ld_cache.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto symbols = cli::parse_elf_exports(bytes);
  promise(symbols.ok() || !symbols.error().message.empty(), "a refusal says why");
  const auto entries = cli::parse_ld_cache(bytes, {"libcuda.so", "libnvidia-ml.so"});
  promise(entries.ok() || !entries.error().message.empty(), "a refusal says why");
  return 0;
}
