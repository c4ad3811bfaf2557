// The words of CUDA C that kernels use, for a C++ compiler: a block's threads are the host's, blocks run in turns.
#pragma once
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

struct Index {
  unsigned x = 0, y = 0;
};

static thread_local Index threadIdx, blockIdx;
static std::barrier<> *waiting = nullptr;

static inline void __syncthreads() { waiting->arrive_and_wait(); }

template <class Kernel> void launch(Index grid, unsigned workers, Kernel kernel) {
  for (unsigned x = 0; x < grid.x; x++)
    for (unsigned y = 0; y < grid.y; y++) {
      std::barrier<> block(workers);
      waiting = &block;
      std::vector<std::jthread> threads;
      for (unsigned worker = 0; worker < workers; worker++)
        threads.emplace_back([=] {
          threadIdx = {worker, 0};
          blockIdx = {x, y};
          kernel();
        });
    }
}
