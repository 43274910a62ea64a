// Package reconfigure serves HDFS's ReconfigurationProtocol: by it operators have a node read its
// configuration again and take what has changed of the settings that may change while it runs
// (hdfs dfsadmin -reconfig). It knows no node: whoever has settings says how they are taken.
//
// Of the project it imports hadoop/conf, hadoop/rpc, hadoop/exception and hdfspb.
package reconfigure

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Protocol is the name of the protocol.
const Protocol = "org.apache.hadoop.hdfs.protocol.ReconfigurationProtocol"

// A Setting is a property that may change while the node runs.
type Setting struct {
	Name string
	// Take takes what p says, or the default if p says nothing; after an error all is as before.
	Take func(p *conf.Properties) error
}

// Config says what a Service does.
type Config struct {
	Settings []Setting // in the order in which they are taken
	// Properties are those with which the node has begun; they may be nil. Their files are read again.
	Properties *conf.Properties
	// Allowed refuses callers who may not.
	Allowed func(ctx context.Context) error
	Logger  *slog.Logger
}

// A Service answers for one node. Its methods may be called concurrently.
type Service struct {
	cfg Config

	mu           sync.Mutex
	properties   *conf.Properties // that were read last
	took         map[string]string
	began, ended time.Time // of the last time; zero: never
	changes      []*hdfspb.GetReconfigurationStatusConfigChangeProto
}

// New returns a Service.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, properties: cfg.Properties, took: map[string]string{}}
	for _, each := range cfg.Settings {
		s.took[each.Name], _ = cfg.Properties.String(each.Name)
	}
	return s
}

// Methods are the protocol's.
func (s *Service) Methods() rpc.Methods {
	return rpc.Methods{
		"getReconfigurationStatus":     rpc.Handle(s.status),
		"listReconfigurableProperties": rpc.Handle(s.list),
		"startReconfiguration":         rpc.Handle(s.start),
	}
}

// start takes what has changed. Unlike in HDFS it is done when it answers.
func (s *Service) start(ctx context.Context, _ *hdfspb.StartReconfigurationRequestProto) (*hdfspb.StartReconfigurationResponseProto, error) {
	if err := s.cfg.Allowed(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.properties.Again()
	if err != nil {
		return nil, exception.New(exception.IO, "read the configuration again: %v", err)
	}
	s.properties, s.began, s.changes = now, time.Now(), nil
	for _, each := range s.cfg.Settings {
		old := s.took[each.Name]
		text, ok := now.String(each.Name)
		if text == old {
			continue
		}
		c := &hdfspb.GetReconfigurationStatusConfigChangeProto{Name: &each.Name, OldValue: &old}
		if ok {
			c.NewValue = &text
		}
		s.changes = append(s.changes, c)
		if err := each.Take(now); err != nil {
			c.ErrorMessage = proto.String(err.Error())
			s.cfg.Logger.Warn("a changed setting can't be taken", "property", each.Name, "from", old, "to", text, "err", err)
			continue
		}
		s.took[each.Name] = text
		s.cfg.Logger.Info("a setting has changed", "property", each.Name, "from", old, "to", text)
	}
	s.ended = time.Now()
	return &hdfspb.StartReconfigurationResponseProto{}, nil
}

// status tells what the last start has done: its times are 0 if there was none.
func (s *Service) status(ctx context.Context, _ *hdfspb.GetReconfigurationStatusRequestProto) (*hdfspb.GetReconfigurationStatusResponseProto, error) {
	if err := s.cfg.Allowed(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &hdfspb.GetReconfigurationStatusResponseProto{StartTime: proto.Int64(0)}
	if !s.began.IsZero() {
		resp.StartTime, resp.EndTime = proto.Int64(s.began.UnixMilli()), proto.Int64(s.ended.UnixMilli())
		resp.Changes = s.changes
	}
	return resp, nil
}

func (s *Service) list(ctx context.Context, _ *hdfspb.ListReconfigurablePropertiesRequestProto) (*hdfspb.ListReconfigurablePropertiesResponseProto, error) {
	if err := s.cfg.Allowed(ctx); err != nil {
		return nil, err
	}
	resp := &hdfspb.ListReconfigurablePropertiesResponseProto{}
	for _, each := range s.cfg.Settings {
		resp.Name = append(resp.Name, each.Name)
	}
	return resp, nil
}
