// Two threads add to one number without synchronization. tests/thread/run checks that this is found, so that a set-up
// that finds nothing is not taken for a program without races.
#include <omp.h>

#include <cstdio>

int main() {
  int sum = 0;
#pragma omp parallel num_threads(2)
  sum += omp_get_thread_num();
  std::printf("%d\n", sum);
}
