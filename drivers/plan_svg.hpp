#pragma once

#include <string>
#include <vector>

#include "drivers/plan_axis.hpp"

namespace lockstep {

struct ChartPoint {
  double x = 0.0;
  double y = 0.0;
};

enum class CurveStyle { line, line_with_dots, faint_dashes };

/// One curve. Curves drawn in colour take the palette's colours in their order.
struct ChartCurve {
  std::string name;  ///< for the legend, which a chart of several curves has
  std::vector<ChartPoint> points;
  CurveStyle style = CurveStyle::line;
  double band_end = 0.0;  ///< where its warm-up ends; 0 for none
};

/// A vertical line with a label, which may be empty.
struct ChartMark {
  double x = 0.0;
  std::string label;
};

/// What a chart shows; both axes begin at 0.
struct Chart {
  std::string title;
  std::vector<std::string> facts;  ///< the lines below the title
  std::string x_title;
  AxisValues x_values = AxisValues::whole_numbers;
  double x_end = 1.0;
  std::string y_title;
  std::string band_label;        ///< written into the shade of a chart with one shade
  std::string marks_title;       ///< what the labels of the marks count; empty when they have none
  std::vector<ChartMark> marks;  ///< rising in x
  std::vector<ChartCurve> curves;
  std::vector<ChartMark> notes;  ///< stronger lines, labelled within the chart
};

/// The chart as one SVG document: text, no scripts, no references to other files, readable on white.
std::string to_svg(const Chart& chart);

}  // namespace lockstep
