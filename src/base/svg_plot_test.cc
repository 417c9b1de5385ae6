#include "base/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::svg {
namespace {

Plot two_lines() {
  return {.title = "Use & share",
          .x_label = "s",
          .y_label = "%",
          .series = {{.name = "a<b", .points = {{0, 0}, {10, 100}}}, {.name = "", .points = {{0, 50}, {10, 50}}}},
          .rules = {{30, "limit"}},
          .y_least = 0,
          .y_most = 100,
          .width = 1000,
          .height = 400};
}

TEST(SvgPlot, DrawsWhatItIsGiven) {
  const auto text = render(two_lines());
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_NE(text->find("Use &amp; share"), std::string::npos);
  EXPECT_NE(text->find("a&lt;b"), std::string::npos);
  // The first series runs from the lower left to the upper right corner of the frame (70..976, 54..344).
  EXPECT_NE(text->find("d=\"M70.0 344.0L976.0 54.0\""), std::string::npos) << *text;
  EXPECT_NE(text->find("d=\"M70.0 199.0L976.0 199.0\""), std::string::npos);
  EXPECT_NE(text->find(">limit<"), std::string::npos);
  EXPECT_EQ(text->substr(text->size() - 7), "</svg>\n");
}

TEST(SvgPlot, StepsHoldTheirValue) {
  Plot plot = two_lines();
  plot.series[0].step = true;
  EXPECT_NE(render(plot)->find("d=\"M70.0 344.0H976.0V54.0\""), std::string::npos);
}

TEST(SvgPlot, ValuesOutsideTheAxisStayInTheFrame) {
  Plot plot = two_lines();
  plot.series[0].points[1].y = 1e6;
  EXPECT_NE(render(plot)->find("L976.0 54.0"), std::string::npos);
}

TEST(SvgPlot, RefusesWhatCannotBeDrawn) {
  Plot plot = two_lines();
  plot.series[0].points[0].y = std::nan("");
  EXPECT_NE(render(plot).error().message.find("a<b"), std::string::npos);
  plot = two_lines();
  plot.series.clear();
  EXPECT_FALSE(render(plot).ok());
  plot = two_lines();
  plot.width = 3;
  EXPECT_FALSE(render(plot).ok());
  plot = two_lines();
  plot.series.resize(kMostSeries + 1);
  EXPECT_FALSE(render(plot).ok());
}

TEST(SvgPlot, AConstantSeriesHasAFrame) {
  const Plot plot{.title = "c", .x_label = "", .y_label = "", .series = {{.name = "c", .points = {{5, 7}}}}};
  EXPECT_TRUE(render(plot).ok());
}

TEST(SvgPlot, MarksAreRoundNumbers) {
  EXPECT_EQ(axis_marks(0, 100, 6), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(axis_marks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_TRUE(axis_marks(1, 1, 5).empty());
  EXPECT_LE(axis_marks(0, 1e9, 8).size(), 12u);
}

}  // namespace
}  // namespace sluice::svg
