// Errors as values. A Result<T> holds a T or an Error; an Error is one sentence a user can act on (what was wrong, what
// was expected, how to mend it) with a code that callers may branch on. Context is added on the way up by `wrap`.
// Not thread-safe, like any value. Accessing the wrong side is a programmer's error and aborts.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace sluice {

enum class ErrorCode {
  kInvalid,      // the input is wrong; mending it is up to whoever wrote it
  kNotFound,     // what was named does not exist
  kExists,       // it exists already
  kPermission,   // the caller may not
  kUnavailable,  // it may work later (a dead agent, a full disk)
  kExhausted,    // a limit or a capacity is reached
  kInternal,     // a fault of ours or of the machine
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  // "context: message", for the way up the stack.
  Error wrap(std::string_view context) && {
    message = std::string(context) + ": " + message;
    return std::move(*this);
  }
};

inline Error invalid(std::string message) {
  return {ErrorCode::kInvalid, std::move(message)};
}
inline Error not_found(std::string message) {
  return {ErrorCode::kNotFound, std::move(message)};
}
inline Error permission(std::string message) {
  return {ErrorCode::kPermission, std::move(message)};
}
inline Error unavailable(std::string message) {
  return {ErrorCode::kUnavailable, std::move(message)};
}
inline Error exhausted(std::string message) {
  return {ErrorCode::kExhausted, std::move(message)};
}
inline Error internal(std::string message) {
  return {ErrorCode::kInternal, std::move(message)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return *check(std::get_if<0>(&state_)); }
  const T& value() const& { return *check(std::get_if<0>(&state_)); }
  T&& value() && { return std::move(*check(std::get_if<0>(&state_))); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  Error& error() & { return *check(std::get_if<1>(&state_)); }
  const Error& error() const& { return *check(std::get_if<1>(&state_)); }
  Error&& error() && { return std::move(*check(std::get_if<1>(&state_))); }

 private:
  template <typename P>
  static P* check(P* pointer) {
    if (pointer == nullptr) std::abort();
    return pointer;
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  Error& error() & { return check(); }
  const Error& error() const& { return const_cast<Result*>(this)->check(); }
  Error&& error() && { return std::move(check()); }

 private:
  Error& check() {
    if (!error_) std::abort();
    return *error_;
  }
  std::optional<Error> error_;
};

}  // namespace sluice
