package domains

import "sync/atomic"

// Numbers deals out the numbers of a device's queue pairs, from 1 on: 0 stands for
// none. After four billion they begin again.
type Numbers struct{ last atomic.Uint32 }

// Next is a number that has not been dealt out lately.
func (n *Numbers) Next() uint32 {
	for {
		if next := n.last.Add(1); next != 0 {
			return next
		}
	}
}
