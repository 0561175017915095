#include "drivers/plan_svg.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <string_view>

namespace lockstep {
namespace {

constexpr double kWidth = 960.0;
constexpr double kLeft = 82.0;
constexpr double kRight = kWidth - 30.0;
constexpr double kPlotHeight = 380.0;
constexpr double kBelow = 66.0;
constexpr double kLegendRow = 22.0;
constexpr double kFactRow = 19.0;
constexpr double kRoomAbove = 32.0;   // the curves, in the plot
constexpr double kLetterWidth = 6.9;  // of a 13-pixel letter, on average

constexpr const char* kInk = "#1f2933";
constexpr const char* kFaintInk = "#5b6874";
constexpr const char* kGrid = "#e4e8ed";
constexpr const char* kMark = "#b3bdc8";

/// Colours that people with a colour-vision deficiency tell apart.
constexpr std::array<const char*, 6> kPalette = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

std::string number(double value) {
  std::array<char, 64> digits;
  std::snprintf(digits.data(), digits.size(), "%.2f", value);
  return digits.data();
}

std::string escaped(std::string_view plain) {
  std::string safe;
  for (const char letter : plain) {
    switch (letter) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += letter;
    }
  }
  return safe;
}

/// Letters, not bytes, of an UTF-8 text.
double width_of(std::string_view text) {
  const auto starts_letter = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) != 0x80u; };
  return kLetterWidth * static_cast<double>(std::count_if(text.begin(), text.end(), starts_letter));
}

/// Writes one chart; its parts are drawn from the back to the front.
class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart),
        x_axis_(chart.x_end, 10, chart.x_values),
        y_axis_(largest_rate(chart), 5, AxisValues::real_numbers) {
    place_legend();
    top_ = legend_top() + kLegendRow * static_cast<double>(legend_rows_) + 8.0 +
           (chart.marks_title.empty() ? 0.0 : 22.0);
    bottom_ = top_ + kPlotHeight;
    // Room for labels above the curves.
    y_end_ = std::max(y_axis_.ticks().back(), 1.12 * largest_rate(chart));
    if (y_end_ <= 0.0) y_end_ = 1.0;
  }

  std::string finished() {
    const std::string height = number(bottom_ + kBelow);
    svg_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth) + " " + height +
           "\" width=\"" + number(kWidth) + "\" height=\"" + height +
           "\" role=\"img\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"13\">\n";
    svg_ += "<title>" + escaped(chart_.title) + "</title>\n";
    svg_ += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
    draw_headline();
    draw_legend();
    draw_bands();
    draw_grid();
    draw_marks();
    draw_curves();
    draw_notes();
    return svg_ + "</svg>\n";
  }

 private:
  struct LegendEntry {
    double x = 0.0;
    std::size_t row = 0;
  };

  static double largest_rate(const Chart& chart) {
    double largest = 0.0;
    for (const ChartCurve& curve : chart.curves) {
      for (const ChartPoint& point : curve.points) largest = std::max(largest, point.y);
    }
    return largest;
  }

  double legend_top() const { return 64.0 + kFactRow * static_cast<double>(chart_.facts.size()); }

  double x_of(double value) const { return kLeft + (kRight - kLeft) * value / chart_.x_end; }
  double y_of(double value) const { return bottom_ - kPlotHeight * value / y_end_; }

  void text(double x, double y, const char* anchor, const char* colour, const std::string& words,
            const std::string& more = "") {
    svg_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\" fill=\"" + colour +
            "\"" + more + ">" + escaped(words) + "</text>\n";
  }

  void small_text(double x, double y, const char* anchor, const char* colour, const std::string& words) {
    text(x, y, anchor, colour, words, " font-size=\"12\"");
  }

  void line(double x1, double y1, double x2, double y2, const char* colour, const std::string& more = "") {
    svg_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) +
            "\" stroke=\"" + colour + "\"" + more + "/>\n";
  }

  const char* colour_of(std::size_t curve) const {
    if (chart_.curves[curve].style == CurveStyle::faint_dashes) return kFaintInk;
    const auto coloured = [](const ChartCurve& other) { return other.style != CurveStyle::faint_dashes; };
    const auto index =
        std::count_if(chart_.curves.begin(), chart_.curves.begin() + static_cast<std::ptrdiff_t>(curve), coloured);
    return kPalette[static_cast<std::size_t>(index) % kPalette.size()];
  }

  void place_legend() {
    if (chart_.curves.size() < 2) return;
    double x = kLeft;
    std::size_t row = 0;
    for (const ChartCurve& curve : chart_.curves) {
      const double width = 34.0 + width_of(curve.name) + 22.0;
      if (x > kLeft && x + width > kRight) {
        x = kLeft;
        ++row;
      }
      legend_.push_back({x, row});
      x += width;
    }
    legend_rows_ = row + 1;
  }

  void draw_headline() {
    text(kLeft, 36.0, "start", kInk, chart_.title, " font-size=\"20\" font-weight=\"bold\"");
    for (std::size_t i = 0; i < chart_.facts.size(); ++i) {
      text(kLeft, 60.0 + kFactRow * static_cast<double>(i), "start", kFaintInk, chart_.facts[i]);
    }
  }

  void draw_legend() {
    for (std::size_t i = 0; i < legend_.size(); ++i) {
      const double y = legend_top() + kLegendRow * static_cast<double>(legend_[i].row);
      const bool faint = chart_.curves[i].style == CurveStyle::faint_dashes;
      line(legend_[i].x, y - 4.5, legend_[i].x + 26.0, y - 4.5, colour_of(i),
           faint ? " stroke-width=\"2\" stroke-dasharray=\"6 4\"" : " stroke-width=\"3\"");
      text(legend_[i].x + 34.0, y, "start", kInk, chart_.curves[i].name);
    }
  }

  void draw_bands() {
    std::vector<std::size_t> banded;
    for (std::size_t i = 0; i < chart_.curves.size(); ++i) {
      if (chart_.curves[i].band_end > 0.0) banded.push_back(i);
    }
    if (banded.empty()) return;
    if (banded.size() == 1) {
      draw_band(banded.front(), top_, kPlotHeight, "0.10");
      small_text(kLeft + 7.0, top_ + 18.0, "start", kFaintInk, chart_.band_label);
      return;
    }
    // Shades would mix, so that bars stand for them, one below the other in the room above the curves.
    const double pitch = std::min(7.5, kRoomAbove / static_cast<double>(banded.size()));
    double longest = 0.0;
    for (std::size_t row = 0; row < banded.size(); ++row) {
      draw_band(banded[row], top_ + 6.0 + pitch * static_cast<double>(row), 0.6 * pitch, "0.85");
      longest = std::max(longest, chart_.curves[banded[row]].band_end);
    }
    const bool at_left = x_of(longest) + 70.0 < kRight;
    small_text(at_left ? x_of(longest) + 8.0 : kRight - 8.0, top_ + 15.0, at_left ? "start" : "end", kFaintInk,
               chart_.band_label);
  }

  void draw_band(std::size_t curve, double y, double height, const char* opacity) {
    const double end = std::min(chart_.curves[curve].band_end, chart_.x_end);
    svg_ += "<rect x=\"" + number(kLeft) + "\" y=\"" + number(y) + "\" width=\"" + number(x_of(end) - kLeft) +
            "\" height=\"" + number(height) + "\" fill=\"" + colour_of(curve) + "\" fill-opacity=\"" + opacity +
            "\"/>\n";
  }

  void draw_grid() {
    for (const double tick : y_axis_.ticks()) {
      if (tick > 0.0) line(kLeft, y_of(tick), kRight, y_of(tick), kGrid);
      text(kLeft - 10.0, y_of(tick) + 4.5, "end", kInk, y_axis_.label(tick));
    }
    for (const double tick : x_axis_.ticks()) {
      if (tick > chart_.x_end * (1.0 + 1e-9)) continue;
      line(x_of(tick), bottom_, x_of(tick), bottom_ + 6.0, kInk);
      text(x_of(tick), bottom_ + 22.0, "middle", kInk, x_axis_.label(tick));
    }
    line(kLeft, bottom_, kRight, bottom_, kInk);
    text((kLeft + kRight) / 2.0, bottom_ + 48.0, "middle", kInk, x_axis_.titled(chart_.x_title));
    const double middle = (top_ + bottom_) / 2.0;
    text(24.0, middle, "middle", kInk, y_axis_.titled(chart_.y_title),
         " transform=\"rotate(-90 24 " + number(middle) + ")\"");
  }

  void draw_marks() {
    for (const ChartMark& mark : chart_.marks) {
      line(x_of(mark.x), top_, x_of(mark.x), bottom_, kMark, " stroke-dasharray=\"2 4\"");
      if (!mark.label.empty()) small_text(x_of(mark.x), top_ - 8.0, "middle", kFaintInk, mark.label);
    }
    if (!chart_.marks_title.empty()) small_text(kLeft - 10.0, top_ - 8.0, "end", kFaintInk, chart_.marks_title);
  }

  void draw_curves() {
    for (std::size_t i = 0; i < chart_.curves.size(); ++i) {
      const ChartCurve& curve = chart_.curves[i];
      svg_ += std::string("<polyline fill=\"none\" stroke=\"") + colour_of(i) +
              "\" stroke-linejoin=\"round\" stroke-linecap=\"round\" " +
              (curve.style == CurveStyle::faint_dashes ? "stroke-width=\"2\" stroke-dasharray=\"6 4\""
                                                       : "stroke-width=\"2.2\"") +
              " points=\"";
      for (const ChartPoint& point : curve.points) svg_ += number(x_of(point.x)) + "," + number(y_of(point.y)) + " ";
      svg_ += "\"/>\n";
      if (curve.style != CurveStyle::line_with_dots) continue;
      for (const ChartPoint& point : curve.points) {
        svg_ += "<circle cx=\"" + number(x_of(point.x)) + "\" cy=\"" + number(y_of(point.y)) +
                "\" r=\"3.4\" fill=\"" + colour_of(i) + "\" stroke=\"#ffffff\"/>\n";
      }
    }
  }

  void draw_notes() {
    for (const ChartMark& note : chart_.notes) {
      const bool at_right = x_of(note.x) + width_of(note.label) > kRight - 12.0;
      line(x_of(note.x), top_, x_of(note.x), bottom_, kInk, " stroke-width=\"1.2\"");
      small_text(x_of(note.x) + (at_right ? -7.0 : 7.0), top_ + 18.0, at_right ? "end" : "start", kInk, note.label);
    }
  }

  const Chart& chart_;
  Axis x_axis_;
  Axis y_axis_;
  std::vector<LegendEntry> legend_;
  std::size_t legend_rows_ = 0;
  double top_ = 0.0;
  double bottom_ = 0.0;
  double y_end_ = 1.0;
  std::string svg_;
};

}  // namespace

std::string to_svg(const Chart& chart) { return Drawing(chart).finished(); }

}  // namespace lockstep
