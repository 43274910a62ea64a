// Package pairs has the GroupBy and SortBy benchmarks by which the shuffle of Spark is
// measured, as a job: mappers make pairs of a number and random bytes and keep them in
// memory; then, and this is what counts, every pair goes to the reducer of its key, and each
// reducer goes through its pairs by key.
//
// GroupBy is Spark's example GroupByTest: a pair goes to the reducer of the remainder of its
// key, which counts the different keys. SortBy is sortByKey: the reducers have ranges of
// keys, which come from a sample, so that one reducer after the other has all pairs in order
// (Lu et al., Performance Characterization and Acceleration of Big Data Workloads on OpenPOWER
// Systems, 2018, measure both).
package pairs
