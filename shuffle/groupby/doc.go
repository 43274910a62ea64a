// Package groupby is the distributed GROUP BY with counts and sums: processes read parts of
// files, add up what has equal keys, send the partial results to the process that has the
// range of the key, add those up, with temporary files if they are more than its memory,
// and write one output in the order of the keys.
//
// Sums are exact: decimal numbers are added as such, so that neither the order in which
// they come nor the number of processes changes a digit.
package groupby
