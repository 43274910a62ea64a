package rdmatest_test

const mutantVariable = "VERBENA_RDMATEST_MUTANT"
