// sluice-accuracy: a scenario in, figures out.
#include <cstdio>

#include "accuracy/report.h"

int main(int argc, char** argv) {
  return sluice::accuracy::accuracy_main(argc, argv);
}
