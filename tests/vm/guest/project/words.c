#include "words.h"
#include <string.h>

size_t letters_count(int words_count, char **words) {
    size_t count = 0;
    for (int i = 0; i < words_count; i++) count += strlen(words[i]);
    return count;
}
