// Operations as lambdas, through raddle.hpp: counts, sums and a mean, with an exception that reaches the wait.
//
//     cargo xtask capi /tmp/raddle
//     c++ -o lambdas examples/c/lambdas.cpp $(PKG_CONFIG_PATH=/tmp/raddle/lib/pkgconfig pkg-config --cflags --libs raddle)
#include "raddle.hpp"

#include <cstdio>
#include <future>
#include <numeric>
#include <thread>

int main() {
    raddle_options options{};
    options.workers = 2;
    options.pin = RADDLE_CHOICE_NO;
    raddle::Engine engine(options);
    const auto load = raddle::name("load"), sum = raddle::name("sum"), divide = raddle::name("divide");

    auto input = engine.token(raddle::name("input")), total = engine.token(), mean = engine.token();
    std::vector<double> values;
    double sum_of = 0, mean_of = 0;

    // The operation asks another thread, and ends when that one uses the completion.
    std::promise<raddle::Completion> request;
    std::thread loader([&] {
        raddle::Completion done = request.get_future().get();
        values = {1, 2, 3, 4};
        done.complete();
    });
    engine.push_async(load, {{}, {&input}}, [&](raddle::Completion done) { request.set_value(std::move(done)); });
    engine.push(sum, {{&input}, {&total}}, [&](raddle_context *) { sum_of = std::accumulate(values.begin(), values.end(), 0.0); });
    engine.push(divide, {{&input, &total}, {&mean}}, [&](raddle_context *) { mean_of = sum_of / values.size(); });
    engine.wait_for(mean, std::chrono::seconds(60), RADDLE_MODE_WRITERS);
    loader.join();
    std::printf("the mean is %.1f\n", mean_of);

    engine.push(divide, {{}, {&mean}}, [](raddle_context *) { throw std::domain_error("there are no values"); });
    bool caught = false;
    try {
        engine.wait(mean);
    } catch (const std::domain_error &error) {
        std::printf("caught: %s\n", error.what());
        caught = true;
    }
    engine.clear_failure(mean);
    engine.wait_all();
    return mean_of == 2.5 && caught && mean.version() == 1 ? 0 : 1;
}
