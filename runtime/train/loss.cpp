#include "runtime/train/loss.hpp"

#include <utility>

namespace lockstep {

MetricFunction metric_of(LossFunction loss) {
  return [loss = std::move(loss)](const Batch& batch) {
    const Loss result = loss(batch);
    const double value = result.value.item<double>();
    const auto samples = static_cast<double>(batch.size());
    const WeightedSum sum =
        result.weight ? WeightedSum{value, *result.weight} : WeightedSum{value * samples, samples};
    return std::map<std::string, WeightedSum>{{"loss", sum}};
  };
}

}  // namespace lockstep
