// Elastic columns: cells that end with a tab are padded to the widest cell of their column, which reaches over
// neighbouring lines only. The rules are those of Go's text/tabwriter (https://pkg.go.dev/text/tabwriter, padding 2, no
// flags), because the layouts of `kubectl inspect cgpu` are defined by it down to the spaces at the ends of lines, and
// people's scripts cut those columns. Pure.
#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

// The text with every tab-ended cell padded to its column's width plus two spaces. A cell counts its code points. The
// text after a line's last tab is no cell of a column and stays as it is.
std::string align_tabs(std::string_view text);

}  // namespace sluice::cli
