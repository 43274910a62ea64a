// Package memfd makes memory that can be handed to other processes and that
// nobody can pull away from under a mapping.
//
// A memfd here is fully allocated and sealed against shrinking and growing
// before anybody else sees it. Adopt checks the same of one that came from
// elsewhere. Together that rules out SIGBUS: a page that is mapped exists for as
// long as the mapping does. Nothing is left in any file system when the
// processes that hold it have ended.
package memfd
