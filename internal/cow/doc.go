// Package cow has two containers of which a version can be taken in no time and read
// while the container goes on changing: [Map], from dense numbers to values, and
// [Names], a directory's names in Apache HDFS's order.
//
// Both are made of pages. A page belongs to the generation in which it was made; a
// change in a later generation copies the page first, once, and then changes its copy in
// place. So a version costs nothing to take, and later as much as is changed: one copy for
// each page touched since. Versions that nobody has any more are left to the garbage
// collector, page by page.
//
// A container has no lock. One goroutine changes it, or several under the
// caller's lock; versions may be read by any number meanwhile, without one.
package cow
