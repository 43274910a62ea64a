//go:build !linux

package verbena

import (
	"net"

	"github.com/verbena-data/verbena/rdma"
)

func socketCredentials(net.Conn) (rdma.Credentials, bool) { return rdma.Credentials{}, false }
