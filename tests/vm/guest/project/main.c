#include "words.h"
#include <stdio.h>

int main(int argc, char **argv) {
    printf("%d words, %zu letters\n", argc - 1, letters_count(argc - 1, argv + 1));
    return 0;
}
