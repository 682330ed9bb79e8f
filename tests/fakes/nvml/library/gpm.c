/* GPM: samples, and what is made of two of them. */
#include "fake.h"
