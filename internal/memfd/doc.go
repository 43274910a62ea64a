// Package memfd makes memory that can be handed to other processes and that
// nobody can make shorter under a mapping.
//
// A memfd here is sealed against shrinking and growing before anybody else sees
// it, and only its maker's user can open it anew. Adopt checks the seals of one that
// came from elsewhere. So no access lies beyond the end of the file.
//
// A maker can still free pages in the middle. Whoever touches one gets a new page,
// zeroed, unless the host has none to give: then the access raises SIGBUS. That can
// happen with huge pages and where vm.overcommit_memory is 2, so Adopt takes no huge
// pages of a process that may be malicious, and CheckForeign tells whether to map
// memory of such a process at all.
//
// Nothing is left in any file system when the processes that hold a memfd have
// ended.
package memfd
