// TensorFlow moved this header; Horovod 0.28.1 still includes it from here.
#pragma once
#include "xla/hlo/builder/xla_builder.h"
