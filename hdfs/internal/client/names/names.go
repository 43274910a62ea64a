// Package names makes the calls of ClientProtocol: to the NameNode, or to whichever
// of several is active. It knows how each method may be repeated and what of a
// NameNode's refusals passes by itself.
package names

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
)

// Protocol is the Java name of ClientProtocol.
const Protocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// Caller makes calls of ClientProtocol.
type Caller interface {
	Call(ctx context.Context, method string, req, resp proto.Message) error
}

// NameNodes calls the active one of some NameNodes. It may be used concurrently.
type NameNodes struct {
	failover *rpc.Failover

	// Slow, unless nil, is called with the NameNode's address when a call has waited for
	// SlowAfter. It is set before the first call.
	Slow func(address string)
}

// SlowAfter is more than NameNodes wait themselves, for DataNodes' reports, before they answer.
const SlowAfter = 10 * time.Second

// maxPause is the longest mean pause between attempts of a call that no NameNode takes.
// HDFS's client dials every second, too: a NameNode that comes back has to hear of leases
// before they expire.
const maxPause = time.Second

// New returns what calls the NameNodes at addresses (host:port) as user. How often, cfg
// tells; what passes by itself is known here.
func New(client *rpc.Client, addresses []string, user, realUser string, cfg rpc.FailoverConfig) *NameNodes {
	targets := make([]rpc.Target, len(addresses))
	for i, a := range addresses {
		targets[i] = rpc.Target{Address: a, Protocol: Protocol, User: user, RealUser: realUser}
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = maxPause
	}
	cfg.Passing = passing
	return &NameNodes{failover: client.Failover(targets, cfg)}
}

// ErrUnanswered is matched by the errors of calls that no NameNode has answered.
var ErrUnanswered = errors.New("no NameNode has answered")

// unanswered is such an error, in its own words.
type unanswered struct{ error }

func (e *unanswered) Unwrap() error { return e.error }

func (e *unanswered) Is(target error) bool { return target == ErrUnanswered }

// Call makes a call and repeats it as its method allows. A refusal is an
// [*exception.Error]; any other error matches [ErrUnanswered].
func (n *NameNodes) Call(ctx context.Context, method string, req, resp proto.Message) error {
	if n.Slow != nil {
		defer time.AfterFunc(SlowAfter, func() { n.Slow(n.Active()) }).Stop()
	}
	err := n.failover.Call(ctx, method, req, resp, Repeatable(method))
	var refused *exception.Error
	if err != nil && !errors.As(err, &refused) {
		return &unanswered{err}
	}
	return err
}

// Active is the address of the NameNode that is asked first.
func (n *NameNodes) Active() string { return n.failover.Active() }

// passing tells of refusals that pass by themselves: a safe mode after a start does,
// one that somebody has turned on, or that a full disk has, does not.
func passing(e *exception.Error) bool {
	return e.Class == exception.SafeMode && strings.Contains(e.Message, "turned off automatically")
}
