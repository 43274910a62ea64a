package namenode

import (
	"fmt"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

const (
	// maxStorages bounds the storages of a DataNode, with those that it had before.
	maxStorages = 255
	// maxStorageID bounds the length of a storage's id, in bytes.
	maxStorageID = 128
	// unknownStorage is the index of a replica's storage of which nothing is known.
	unknownStorage = maxStorages
)

// storage is one of a DataNode's directories of replicas.
type storage struct {
	id                        string
	kind                      hdfspb.StorageTypeProto
	failed                    bool
	capacity, used, remaining uint64
}

// storages are those that a DataNode has named since this NameNode's start. Replicas have
// indices of all.
type storages struct {
	all  []storage
	told []uint8 // in all, by the numbers of the DataNode's registration
}

// checkStorages refuses what no DataNode names.
func checkStorages(named []*clusterpb.Storage) error {
	if len(named) > maxStorages {
		return fmt.Errorf("%d storages, at most %d are possible", len(named), maxStorages)
	}
	for _, s := range named {
		if len(s.GetId()) > maxStorageID {
			return fmt.Errorf("the id of a storage has %d bytes, at most %d are possible", len(s.GetId()), maxStorageID)
		}
	}
	return nil
}

// register takes the storages of a registration. A DataNode that names none has one.
func (s *storages) register(uuid string, named []*clusterpb.Storage) {
	if len(named) == 0 {
		id := "DS-" + uuid
		named = []*clusterpb.Storage{{Id: &id}}
	}
	if len(s.all)+len(named) > maxStorages {
		s.all = nil // the full report that follows tells anew where the replicas are
	}
	s.told = s.told[:0]
	for _, st := range named[:min(len(named), maxStorages)] {
		i := uint8(unknownStorage)
		if st.GetId() != "" {
			i = s.index(st.GetId())
			kind := hdfspb.StorageTypeProto(st.GetType())
			if hdfspb.StorageTypeProto_name[int32(kind)] == "" {
				kind = hdfspb.StorageTypeProto_DISK
			}
			s.all[i] = storage{
				id: st.GetId(), kind: kind, failed: st.GetFailed(),
				capacity: st.GetCapacity(), used: st.GetUsed(), remaining: st.GetRemaining(),
			}
		}
		s.told = append(s.told, i)
	}
}

// index returns that of a storage, which may be new.
func (s *storages) index(id string) uint8 {
	for i := range s.all {
		if s.all[i].id == id {
			return uint8(i)
		}
	}
	s.all = append(s.all, storage{id: id})
	return uint8(len(s.all) - 1)
}

// of returns the index of the storage that a replica is reported in.
func (s *storages) of(r *clusterpb.Replica) uint8 {
	if i := r.GetStorage(); int(i) < len(s.told) {
		return s.told[i]
	}
	return unknownStorage
}

func (s *storages) failed(index uint8) bool { return int(index) < len(s.all) && s.all[index].failed }

// report takes what a heartbeat tells and returns which storages have failed since the last.
func (s *storages) report(now []*clusterpb.Storage) (failed []uint8) {
	for i, st := range now[:min(len(now), len(s.told))] {
		at := s.told[i]
		if at == unknownStorage {
			continue
		}
		known := &s.all[at]
		if st.GetFailed() && !known.failed {
			failed = append(failed, at)
		}
		known.failed = known.failed || st.GetFailed()
		known.capacity, known.used, known.remaining = st.GetCapacity(), st.GetUsed(), st.GetRemaining()
	}
	return failed
}

// here calls f for the storages of the present registration.
func (s *storages) here(f func(*storage)) {
	for _, i := range s.told {
		if i != unknownStorage {
			f(&s.all[i])
		}
	}
}

// measure sums up what the DataNode's storages have told. A DataNode whose room was not known can take
// blocks from then on. The caller has m.mu.
func (m *blockMap) measure(n *node) {
	before := n.capacity
	n.capacity, n.used, n.remaining = 0, 0, 0
	n.storages.here(func(s *storage) {
		n.capacity, n.used, n.remaining = n.capacity+s.capacity, n.used+s.used, n.remaining+s.remaining
	})
	if before == 0 && n.capacity > 0 {
		close(m.grown)
		m.grown = make(chan struct{})
	}
}

// room is how many bytes the storages have that take a block of size bytes.
func (s *storages) room(size uint64) (room uint64) {
	for _, i := range s.told {
		if i != unknownStorage && !s.all[i].failed && s.all[i].remaining >= size {
			room += s.all[i].remaining
		}
	}
	return room
}

// named returns a storage's id and kind; of one that is not known, those of any in service
// that a new block could be in, disks first.
func (s *storages) named(index uint8) (id string, kind hdfspb.StorageTypeProto) {
	if int(index) < len(s.all) {
		return s.all[index].id, s.all[index].kind
	}
	kind = hdfspb.StorageTypeProto_DISK
	for _, i := range s.told {
		if i == unknownStorage || s.all[i].failed {
			continue
		}
		if st := &s.all[i]; id == "" || kind != hdfspb.StorageTypeProto_DISK && st.kind == hdfspb.StorageTypeProto_DISK {
			id, kind = st.id, st.kind
		}
	}
	return id, kind
}

// dropFailed drops the replicas in a DataNode's storage that is out of service.
func (m *blockMap) dropFailed(n *node, index uint8) {
	m.cfg.Logger.Error("namenode: a storage has failed; what was in it is copied from elsewhere", "datanode", n.dn.UUID, "host", n.dn.Host, "port", n.dn.Port, "storage", n.storages.all[index].id)
	session := n.session
	m.begin(nil, &scan{
		useless: func() bool { return n.session != session }, // a full report comes, or has come
		visit: func(id uint64) {
			if r, ok := m.replicas.find(id, n.index); ok && r.storage == index {
				m.drop(id, n)
				m.look(id)
			}
		},
	})
}
