// Package quota holds the arithmetic of HDFS's quotas: what a directory may hold, what it
// holds, and whether more fits in. It knows no directories.
//
// Of the project it imports the exceptions that clients know, and the kinds of storage.
package quota

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// What a client asks for instead of a limit, and what stands for none.
const (
	DontSet = math.MaxInt64 // leave it as it is; of the root's names: there is none
	Reset   = -1            // there shall be none
	none    = -1
)

// Counts are what a directory holds, with itself and all below it.
type Counts struct {
	Names int64 // files and directories
	Space int64 // bytes of all replicas; a block that is written counts as full
	// Types are the bytes by the kinds of storage that the storage policy wants, of files
	// that have one.
	Types [storagepolicy.Types]int64
	// Open are those bytes of which a policy further above, if there is any, tells the kinds.
	Open Undecided
}

// Undecided are bytes of some files.
type Undecided struct {
	First int64 // of one replica of each file
	All   int64 // of all replicas
}

// Add adds others.
func (c *Counts) Add(d *Counts) {
	c.Names += d.Names
	c.Space += d.Space
	for t := range c.Types {
		c.Types[t] += d.Types[t]
	}
	c.Open.First += d.Open.First
	c.Open.All += d.Open.All
}

// Sub subtracts others.
func (c *Counts) Sub(d *Counts) {
	c.Names -= d.Names
	c.Space -= d.Space
	for t := range c.Types {
		c.Types[t] -= d.Types[t]
	}
	c.Open.First -= d.Open.First
	c.Open.All -= d.Open.All
}

// Under are the counts under a storage policy, which tells the kinds of what is open. Unspecified tells
// nothing.
func (c Counts) Under(policy uint8) Counts {
	if policy == storagepolicy.Unspecified {
		return c
	}
	p, _ := storagepolicy.ByID(policy)
	// As Choose has it: one replica is for the first kind, all others are for the last one.
	switch types := p.Choose(2); {
	case len(types) == 0:
	case types[0] == types[1]:
		c.Types[types[0]] += c.Open.All
	default:
		c.Types[types[0]] += c.Open.First
		c.Types[types[1]] += c.Open.All - c.Open.First
	}
	c.Open = Undecided{}
	return c
}

// grows tells whether anything is more than 0.
func (c *Counts) grows() bool {
	for _, n := range c.Types {
		if n > 0 {
			return true
		}
	}
	return c.Names > 0 || c.Space > 0
}

// Blocks are the bytes of each replica, so many times, at least once, under a storage policy.
func Blocks(bytes int64, replication int, policy uint8) Counts {
	all := bytes * int64(replication)
	return Counts{Space: all, Open: Undecided{First: bytes, All: all}}.Under(policy)
}

// Limits are what a directory may hold; -1 stands for no limit.
type Limits struct {
	Names, Space int64
	Types        [storagepolicy.Types]int64
}

// NoLimits bound nothing. The root says so of its names in another way.
func NoLimits(root bool) Limits {
	l := Limits{Names: none, Space: none}
	if root {
		l.Names = DontSet
	}
	for t := range l.Types {
		l.Types[t] = none
	}
	return l
}

// Bound tells whether there is any limit.
func (l *Limits) Bound(root bool) bool { return *l != NoLimits(root) }

// Request is what a client asks for.
type Request struct {
	Names, Space int64
	// Type is a kind of storage, for which Space is meant; 0: all storage.
	Type storagepolicy.Type
}

// Operation is what HDFS calls the request.
func (q Request) Operation() string {
	switch {
	case q.Names == Reset && q.Space == DontSet:
		return "clearQuota"
	case q.Names == DontSet && q.Space == Reset:
		return "clearSpaceQuota"
	case q.Space == DontSet:
		return "setQuota"
	}
	return "setSpaceQuota"
}

// Check refuses what nobody can ask for. types tells whether there are limits on kinds of storage.
func (q Request) Check(types bool) error {
	if q.Names < Reset || q.Space < Reset {
		return exception.New(exception.JavaIllegalArgument, "Illegal value for nsQuota or ssQuota : %d and %d", q.Names, q.Space)
	}
	if q.Type >= storagepolicy.Types {
		return exception.New(exception.UnsupportedAction, "%s is no kind of storage", q.Type)
	}
	if q.Type != 0 && (!types || q.Names != DontSet) {
		return exception.New(exception.UnsupportedAction, "Failed to set quota by storage type because eitherdfs.quota.by.storage.type.enabled is set to %t or nsQuota value is illegal %d", types, q.Names)
	}
	return nil
}

// Apply returns the limits that a request makes.
func (q Request) Apply(l Limits, root bool) Limits {
	space := q.Space
	if space == DontSet {
		space = l.Space
	}
	if q.Type != 0 {
		l.Types[q.Type] = space
		return l
	}
	l.Space = space
	switch {
	case root && q.Names == Reset:
		l.Names = DontSet
	case q.Names != DontSet:
		l.Names = q.Names
	}
	return l
}

// Check tells why a directory that holds used has no room for more.
func (l *Limits) Check(used, more *Counts, path string) error {
	if !more.grows() {
		return nil
	}
	if violated(l.Names, used.Names, more.Names) {
		return exception.New(exception.NSQuotaExceeded, "The NameSpace quota (directories and files) of directory %s is exceeded: quota=%d file count=%d", path, l.Names, used.Names+more.Names)
	}
	if violated(l.Space, used.Space, more.Space) {
		count := used.Space + more.Space
		return exception.New(exception.DSQuotaExceeded, "The DiskSpace quota of %s is exceeded: quota = %d B = %s but diskspace consumed = %d B = %s", path, l.Space, Bytes(l.Space), count, Bytes(count))
	}
	for _, t := range storagepolicy.Counted {
		if violated(l.Types[t], used.Types[t], more.Types[t]) {
			return exception.New(exception.QuotaByStorageTypeExceeded, "Quota by storage type : %s on path : %s is exceeded. quota = %s but space consumed = %s", t, path, Bytes(l.Types[t]), Bytes(used.Types[t]+more.Types[t]))
		}
	}
	return nil
}

func violated(limit, used, more int64) bool {
	return limit >= 0 && more > 0 && used > limit-more
}

// Bytes shows a number of bytes as Hadoop does: 1.50 KB.
func Bytes(n int64) string {
	sign := ""
	size := uint64(n)
	if n < 0 {
		sign, size = "-", -size
	}
	if size < 1024 {
		return fmt.Sprintf("%s%d B", sign, size)
	}
	const prefixes = "KMGTPE"
	i := 0
	for i+1 < len(prefixes) && size >= 1<<(10*(i+2)) {
		i++
	}
	if size&(1<<(10*(i+1))-1) == 0 {
		return fmt.Sprintf("%s%d %cB", sign, size>>(10*(i+1)), prefixes[i])
	}
	hundredths := scaled(size, 10*(i+1))
	if hundredths >= 1024*100 && i+1 < len(prefixes) {
		i++
		hundredths = scaled(size, 10*(i+1))
	}
	return fmt.Sprintf("%s%d.%02d %cB", sign, hundredths/100, hundredths%100, prefixes[i])
}

// scaled is 100 n / 2^shift, rounded half up as Java rounds.
func scaled(n uint64, shift int) uint64 {
	hi, lo := bits.Mul64(n, 100)
	lo, carry := bits.Add64(lo, 1<<(shift-1), 0)
	hi += carry
	return hi<<(64-shift) | lo>>shift
}
