// Package cgocalls posts and polls the way a program with cgo does, so that
// benchmarks of the binding can be measured beside it. It is empty without the
// build tag cgobench, and nothing but those benchmarks imports it.
package cgocalls
