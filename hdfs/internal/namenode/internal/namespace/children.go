package namespace

import "sort"

// chunkSize bounds what one insertion moves, whatever the directory's size.
const chunkSize = 256

// before tells whether one name comes before another, as in Apache HDFS: by their bytes,
// which Java takes for signed. So what is not ASCII comes first.
func before(a, b string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return int8(a[i]) < int8(b[i])
		}
	}
	return len(a) < len(b)
}

// children are a directory's inodes in the order of their names, in chunks of at most
// chunkSize, none of them empty.
type children struct {
	chunks [][]*Inode
	count  int
}

// search returns where name is or would be.
func (c *children) search(name string) (chunk, index int, found bool) {
	chunk = sort.Search(len(c.chunks), func(i int) bool {
		last := c.chunks[i]
		return !before(last[len(last)-1].name, name)
	})
	if chunk == len(c.chunks) {
		return chunk, 0, false
	}
	inodes := c.chunks[chunk]
	index = sort.Search(len(inodes), func(i int) bool { return !before(inodes[i].name, name) })
	return chunk, index, inodes[index].name == name
}

func (c *children) get(name string) *Inode {
	if chunk, index, ok := c.search(name); ok {
		return c.chunks[chunk][index]
	}
	return nil
}

// insert adds an inode whose name is not there yet.
func (c *children) insert(n *Inode) {
	c.count++
	chunk, index, _ := c.search(n.name)
	if chunk == len(c.chunks) {
		if chunk == 0 {
			c.chunks = append(c.chunks, []*Inode{n})
			return
		}
		chunk--
		index = len(c.chunks[chunk])
	}
	inodes := c.chunks[chunk]
	if len(inodes) == chunkSize {
		// Names often come in order: then full chunks stay full.
		half := chunkSize / 2
		if chunk == len(c.chunks)-1 && index == chunkSize {
			half = chunkSize
		}
		right := make([]*Inode, chunkSize-half, chunkSize)
		copy(right, inodes[half:])
		clear(inodes[half:])
		c.chunks = append(c.chunks, nil)
		copy(c.chunks[chunk+2:], c.chunks[chunk+1:])
		c.chunks[chunk] = inodes[:half]
		c.chunks[chunk+1] = right
		if index >= half {
			chunk, index = chunk+1, index-half
		}
		inodes = c.chunks[chunk]
	}
	inodes = append(inodes, nil)
	copy(inodes[index+1:], inodes[index:])
	inodes[index] = n
	c.chunks[chunk] = inodes
}

func (c *children) remove(name string) {
	chunk, index, ok := c.search(name)
	if !ok {
		return
	}
	c.count--
	inodes := c.chunks[chunk]
	copy(inodes[index:], inodes[index+1:])
	inodes[len(inodes)-1] = nil
	inodes = inodes[:len(inodes)-1]
	c.chunks[chunk] = inodes
	if len(inodes) == 0 {
		copy(c.chunks[chunk:], c.chunks[chunk+1:])
		c.chunks[len(c.chunks)-1] = nil
		c.chunks = c.chunks[:len(c.chunks)-1]
	}
}

// after calls visit for the children whose names come after start, until it
// returns false. start "" begins with the first.
func (c *children) after(start string, visit func(*Inode) bool) {
	chunk, index := 0, 0
	if start != "" {
		var found bool
		chunk, index, found = c.search(start)
		if found {
			index++
		}
	}
	for ; chunk < len(c.chunks); chunk, index = chunk+1, 0 {
		for _, n := range c.chunks[chunk][index:] {
			if !visit(n) {
				return
			}
		}
	}
}

// rest counts the children whose names come after start.
func (c *children) rest(start string) int {
	chunk, index, found := c.search(start)
	if found {
		index++
	}
	n := -index
	for ; chunk < len(c.chunks); chunk++ {
		n += len(c.chunks[chunk])
	}
	return max(n, 0)
}
