#include "sim/image.h"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>

namespace sluice::sim {

namespace {

constexpr uint32_t kFatWrapper = 0x466243b1;
constexpr uint32_t kFatBinary = 0xba55ed50;
constexpr size_t kMaxImage = 1u << 30;

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

std::string_view next_word(std::string_view& s, std::string_view separators = " \t") {
  const size_t from = s.find_first_not_of(separators);
  if (from == std::string_view::npos) {
    s = {};
    return {};
  }
  const size_t to = std::min(s.find_first_of(separators, from), s.size());
  const std::string_view word = s.substr(from, to - from);
  s.remove_prefix(to);
  return word;
}

// "5,1000,0.5" into up to three numbers; how many.
size_t numbers(std::string_view text, double out[3]) {
  size_t count = 0;
  while (!text.empty() && count < 3) {
    const std::string one(text.substr(0, text.find(',')));
    char* end = nullptr;
    out[count++] = std::strtod(one.c_str(), &end);
    if (end == one.c_str() || *end != '\0') return 0;
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return text.empty() ? count : 0;
}

bool set_cost(Cost& cost, CostKind kind, std::string_view text, size_t least, size_t most) {
  double n[3] = {};
  const size_t count = numbers(text, n);
  if (count < least || count > most) return false;
  cost.kind = kind;
  cost.a_ns = n[0] * 1000;
  if (kind == CostKind::kLognormal) {
    cost.c = n[1];
    cost.b_ns = n[2] * 1000;
  } else {
    cost.b_ns = n[1] * 1000;
    cost.c = n[2];
  }
  return true;
}

uint32_t type_bytes(std::string_view type) {
  const size_t digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos) return type == ".pred" ? 1 : 8;
  return static_cast<uint32_t>(std::max(1, std::atoi(std::string(type.substr(digits)).c_str()) / 8));
}

// ".param .align 8 .b8 name[16]" or ".param .u64 name": alignment and bytes of the declared thing, and its name.
struct Declaration {
  uint32_t alignment = 1, element = 8;
  uint64_t bytes = 8;
  std::string name;
};
Declaration parse_declaration(std::string_view text) {
  Declaration d;
  bool aligned = false;
  for (std::string_view word = next_word(text, " \t\n\r"); !word.empty(); word = next_word(text, " \t\n\r")) {
    if (word == ".align") {
      d.alignment = static_cast<uint32_t>(std::atoi(std::string(next_word(text, " \t\n\r")).c_str()));
      aligned = true;
    } else if (word.front() == '.') {
      static constexpr std::string_view kQualifiers[] = {".param", ".global", ".ptr",    ".visible", ".extern", ".weak",
                                                         ".const", ".space",  ".shared", ".managed", ".local"};
      if (std::find(std::begin(kQualifiers), std::end(kQualifiers), word) == std::end(kQualifiers))
        d.element = type_bytes(word);
    } else if (d.name.empty()) {
      const size_t bracket = word.find('[');
      d.name = std::string(word.substr(0, bracket));
      d.bytes = d.element;
      if (bracket != std::string_view::npos) {
        d.bytes *= static_cast<uint64_t>(std::max(0LL, std::atoll(std::string(word.substr(bracket + 1)).c_str())));
      }
      if (const size_t equals = d.name.find('='); equals != std::string::npos) d.name.resize(equals);
    }
  }
  if (!aligned) d.alignment = d.element;
  return d;
}

void parse_parameters(std::string_view list, KernelInfo& kernel) {
  kernel.parameters_known = true;
  uint32_t offset = 0;
  while (!trim(list).empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view one = list.substr(0, comma);
    list.remove_prefix(std::min(list.size(), comma + 1));
    if (one.find(".param") == std::string_view::npos) continue;
    const Declaration d = parse_declaration(one);
    const uint32_t alignment = std::max(1u, d.alignment);
    offset = (offset + alignment - 1) / alignment * alignment;
    kernel.parameters.push_back({offset, static_cast<uint32_t>(d.bytes)});
    offset += static_cast<uint32_t>(d.bytes);
  }
}

// From ".entry" on: name, parameters, attributes up to the body, instructions of the body.
size_t parse_entry(std::string_view text, size_t at, ImageInfo& info) {
  KernelInfo kernel;
  std::string_view rest = text.substr(at + 6);
  const size_t name_from = rest.find_first_not_of(" \t\r\n");
  if (name_from == std::string_view::npos) return text.size();
  const size_t name_to = std::min(rest.find_first_of(" \t\r\n({;", name_from), rest.size());
  kernel.name = std::string(rest.substr(name_from, name_to - name_from));
  const size_t open = rest.find('{', name_to);
  const size_t parenthesis = rest.find('(', name_to);
  kernel.parameters_known = true;
  if (parenthesis < open) {
    const size_t close = std::min(rest.find(')', parenthesis), rest.size());
    parse_parameters(rest.substr(parenthesis + 1, close - parenthesis - 1), kernel);
  }
  const std::string_view head = rest.substr(0, std::min(open, rest.size()));
  for (const std::string_view key : {".maxntid", ".reqntid"}) {
    const size_t found = head.find(key);
    if (found == std::string_view::npos) continue;
    int product = 1;
    std::string_view values = head.substr(found + key.size(), head.find('\n', found) - found - key.size());
    for (std::string_view v = next_word(values, " ,\t"); !v.empty(); v = next_word(values, " ,\t")) {
      if (const int n = std::atoi(std::string(v).c_str()); n > 0) product = std::min(product * std::min(n, 1024), 1024);
    }
    kernel.max_threads = static_cast<uint32_t>(std::clamp(product, 1, 1024));
  }
  if (open == std::string_view::npos) return text.size();
  int depth = 0;
  size_t i = open;
  uint32_t statements = 0;
  for (; i < rest.size(); ++i) {
    if (rest[i] == '{') ++depth;
    if (rest[i] == '}' && --depth == 0) break;
    if (rest[i] == ';') ++statements;
  }
  const std::string_view body = rest.substr(open, i - open);
  for (size_t d = body.find(".reg"); d != std::string_view::npos; d = body.find(".reg", d + 4))
    statements -= std::min(statements, 1u);
  for (size_t d = body.find(".shared "); d != std::string_view::npos; d = body.find(".shared ", d + 8)) {
    const std::string_view line = body.substr(d, body.find(';', d) - d);
    if (line.find('[') == std::string_view::npos || line.find(".align") == std::string_view::npos) continue;
    kernel.shared_bytes += static_cast<uint32_t>(parse_declaration(line).bytes);
  }
  kernel.cost.instructions = std::max(1u, statements);
  info.kernels.push_back(std::move(kernel));
  return at + 6 + i;
}

void read_ptx(std::string_view text, ImageInfo& info) {
  for (size_t at = text.find(".entry"); at != std::string_view::npos; at = text.find(".entry", at)) {
    const size_t line = text.rfind('\n', at);
    const std::string_view before =
        text.substr(line == std::string_view::npos ? 0 : line, at - (line == std::string_view::npos ? 0 : line));
    if (before.find("//") != std::string_view::npos) {
      at += 6;
      continue;
    }
    at = parse_entry(text, at, info);
  }
  size_t depth = 0;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    const std::string_view line = trim(text.substr(from, to - from));
    if (depth == 0 && line.find(".global") != std::string_view::npos &&
        line.find(".extern") == std::string_view::npos && line.find("//") != 0) {
      const Declaration d = parse_declaration(line.substr(0, line.find_first_of(";=")));
      if (!d.name.empty()) info.globals.push_back({d.name, std::max<uint64_t>(1, d.bytes)});
    }
    for (const char c : line) depth += c == '{' ? 1u : c == '}' && depth > 0 ? ~size_t{0} : 0u;
    from = to + 1;
  }
}

void read_cost_lines(std::string_view text, ImageInfo& info) {
  static constexpr std::string_view kKey = "// sluice kernel ";
  for (size_t at = text.find(kKey); at != std::string_view::npos; at = text.find(kKey, at + 1)) {
    std::string_view line = text.substr(at + kKey.size(), text.find('\n', at) - at - kKey.size());
    const std::string name(next_word(line));
    auto kernel =
        std::find_if(info.kernels.begin(), info.kernels.end(), [&](const KernelInfo& k) { return k.name == name; });
    if (kernel == info.kernels.end()) {
      info.kernels.push_back({});
      kernel = std::prev(info.kernels.end());
      kernel->name = name;
    }
    parse_cost(line, &*kernel);
  }
}

// ".nv.info.NAME" of a cubin lists attributes; number 0x17 says index, offset and size of one parameter.
void read_parameters(std::string_view info, KernelInfo& kernel) {
  std::map<uint32_t, KernelInfo::Parameter> found;
  for (size_t at = 0; at + 4 <= info.size();) {
    const auto format = static_cast<uint8_t>(info[at]), attribute = static_cast<uint8_t>(info[at + 1]);
    uint16_t size = 0;
    std::memcpy(&size, info.data() + at + 2, 2);
    if (format != 4) {
      at += 4;
      continue;
    }
    if (attribute == 0x17 && size >= 12 && at + 16 <= info.size()) {
      uint16_t ordinal = 0, offset = 0;
      uint32_t flags = 0;
      std::memcpy(&ordinal, info.data() + at + 8, 2);
      std::memcpy(&offset, info.data() + at + 10, 2);
      std::memcpy(&flags, info.data() + at + 12, 4);
      found[ordinal] = {offset, flags >> 18};
    }
    at += 4u + size;
  }
  kernel.parameters_known = true;
  for (const auto& [ordinal, parameter] : found) kernel.parameters.push_back(parameter);
}

// Offsets come from the image and may be anything: sums of them would wrap.
bool lies_within(uint64_t offset, uint64_t length, size_t size) {
  return offset <= size && length <= size - offset;
}

bool read_elf(std::string_view bytes, ImageInfo& info) {
  Elf64_Ehdr header{};
  if (bytes.size() < sizeof header) return false;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto section = [&](size_t i, Elf64_Shdr* out) {
    const uint64_t within = i * sizeof(Elf64_Shdr);  // i has 16 bits
    if (!lies_within(header.e_shoff, within + sizeof *out, bytes.size())) return false;
    std::memcpy(out, bytes.data() + header.e_shoff + within, sizeof *out);
    return true;
  };
  Elf64_Shdr names{};
  if (!section(header.e_shstrndx, &names) || !lies_within(names.sh_offset, names.sh_size, bytes.size())) return false;
  const std::string_view strings = bytes.substr(names.sh_offset, names.sh_size);
  const auto name_of = [&](const Elf64_Shdr& s) {
    if (s.sh_name >= strings.size()) return std::string_view{};
    const std::string_view rest = strings.substr(s.sh_name);
    return rest.substr(0, rest.find('\0'));
  };
  for (size_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr s{};
    if (!section(i, &s)) return false;
    const std::string_view name = name_of(s);
    if (name.rfind(".text.", 0) != 0) continue;
    KernelInfo kernel;
    kernel.name = std::string(name.substr(6));
    kernel.registers = std::max(16u, static_cast<uint32_t>(s.sh_info >> 24));
    kernel.cost.instructions = std::max(1u, static_cast<uint32_t>(s.sh_size / 16));
    info.kernels.push_back(std::move(kernel));
  }
  for (size_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr s{};
    if (!section(i, &s)) return false;
    const std::string_view name = name_of(s);
    for (KernelInfo& kernel : info.kernels) {
      if (name == ".nv.info." + kernel.name && lies_within(s.sh_offset, s.sh_size, bytes.size())) {
        read_parameters(bytes.substr(s.sh_offset, s.sh_size), kernel);
      }
      if (name == ".nv.shared." + kernel.name) kernel.shared_bytes = static_cast<uint32_t>(s.sh_size);
    }
  }
  return !info.kernels.empty();
}

}  // namespace

bool parse_cost(std::string_view words, KernelInfo* kernel) {
  bool understood = true;
  for (std::string_view word = next_word(words); !word.empty(); word = next_word(words)) {
    const size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : trim(word.substr(equals + 1));
    Cost& cost = kernel->cost;
    double n[3] = {};
    if (key == "us") {
      understood &= set_cost(cost, CostKind::kFixed, value, 1, 1);
    } else if (key == "lognormal") {
      understood &= set_cost(cost, CostKind::kLognormal, value, 2, 3);
    } else if (key == "uniform") {
      understood &= set_cost(cost, CostKind::kUniform, value, 2, 2);
    } else if (key == "choice") {
      understood &= set_cost(cost, CostKind::kChoice, value, 3, 3);
    } else if (key == "per_block") {
      cost.per_block = 1;
    } else if (key == "blocks_per_sm" && numbers(value, n) == 1) {
      cost.blocks_per_sm = static_cast<uint32_t>(std::clamp(n[0], 1.0, 64.0));
    } else if (key == "registers" && numbers(value, n) == 1) {
      kernel->registers = static_cast<uint32_t>(std::clamp(n[0], 1.0, 255.0));
    } else if (key == "spin") {
      kernel->behaviour = Behaviour::kSpin;
    } else if (key == "collective") {
      kernel->behaviour = Behaviour::kCollective;
    } else {
      understood = false;
    }
  }
  return understood;
}

void apply_name(KernelInfo& kernel) {
  if (kernel.name == "sluice_fill_u32") kernel.behaviour = Behaviour::kFill;
  if (kernel.name == "sluice_vector_add_f32") kernel.behaviour = Behaviour::kVectorAdd;
  if (kernel.name == "sluice_saxpy_f32") kernel.behaviour = Behaviour::kSaxpy;
}

std::string_view image_bytes(const void* image) {
  const char* bytes = static_cast<const char*>(image);
  uint32_t magic = 0;
  std::memcpy(&magic, bytes, 1);
  if (bytes[0] == '\x7f' && std::memcmp(bytes, ELFMAG, SELFMAG) == 0) {
    Elf64_Ehdr header{};
    std::memcpy(&header, bytes, sizeof header);
    const uint64_t end = std::max(header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize,
                                  header.e_phoff + uint64_t{header.e_phnum} * header.e_phentsize);
    return {bytes, std::min<size_t>(end, kMaxImage)};
  }
  if ((static_cast<uint8_t>(bytes[0]) == 0xb1 || static_cast<uint8_t>(bytes[0]) == 0x50) && bytes[1] != '\0') {
    std::memcpy(&magic, bytes, sizeof magic);
    if (magic == kFatWrapper) {
      const void* inner = nullptr;
      std::memcpy(&inner, bytes + 8, sizeof inner);
      return inner != nullptr ? image_bytes(inner) : std::string_view{};
    }
    if (magic == kFatBinary) {
      uint16_t header_bytes = 0;
      uint64_t size = 0;
      std::memcpy(&header_bytes, bytes + 6, sizeof header_bytes);
      std::memcpy(&size, bytes + 8, sizeof size);
      return {bytes, std::min<size_t>(header_bytes + size, kMaxImage)};
    }
  }
  return {bytes, strnlen(bytes, kMaxImage)};
}

ImageInfo read_image(std::string_view bytes) {
  ImageInfo info;
  info.bytes = bytes.size();
  if (bytes.size() > SELFMAG && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0) {
    if (!read_elf(bytes, info)) info.any_name = true;
  } else {
    const bool text = bytes.find('\0') == std::string_view::npos;
    if (text) {
      read_ptx(bytes, info);
      read_cost_lines(bytes, info);
    }
    if (info.kernels.empty()) info.any_name = true;
  }
  for (KernelInfo& kernel : info.kernels) apply_name(kernel);
  return info;
}

}  // namespace sluice::sim
