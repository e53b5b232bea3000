#pragma once
#include <stddef.h>

size_t letters_count(int words_count, char **words);
