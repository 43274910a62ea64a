//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

const (
	// maxRegion bounds what Attributes promises: drivers promise 2^64.
	maxRegion  = 1 << 40
	maxMessage = 1 << 31 // InfiniBand's own bound, volume 1, section 9.2
	// maxSGE bounds the entries of a request, which this side keeps room for.
	maxSGE = 64
)

// Where the kernel tells about devices; tests put a directory of their own here.
var sysClass = "/sys/class"

// addressesOf is replaced by tests.
var addressesOf = interfaceAddresses

// host keeps the devices that have been found, so that asking again gives the same
// objects.
type host struct {
	mu    sync.Mutex
	known map[string]*Device
}

// Device implements [rdma.RoutedDevice]: one adapter, or a software device of the
// kernel's.
type Device struct {
	provider   *Provider
	manager    *manager
	attributes rdma.Attributes
	driver     string
	quirks     *quirks.Driver
	firmware   string

	sharedDepth, sharedSGE int

	mu    sync.Mutex
	ports []Port
	links []verbs.LinkLayer // by port
}

var _ rdma.RoutedDevice = (*Device)(nil)

// Attributes implements [rdma.Device].
func (d *Device) Attributes() rdma.Attributes { return d.attributes }

// Ports tells the state of the device's ports when it was last listed.
func (d *Device) Ports() []Port {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ports)
}

// Driver is the name of the device's user-space driver, such as "mlx5".
func (d *Device) Driver() string { return d.driver }

func (h *host) devices(p *Provider) ([]rdma.Device, error) {
	adapters, found, err := h.find(p)
	if err != nil {
		return nil, err
	}
	var usable []rdma.Device
	var why []error
	for i, a := range adapters {
		if a.Unusable != nil {
			why = append(why, a.Unusable)
			continue
		}
		usable = append(usable, found[i])
	}
	if len(usable) == 0 {
		return nil, errors.Join(why...)
	}
	return usable, nil
}

func (h *host) adapters(p *Provider) ([]Adapter, error) {
	adapters, _, err := h.find(p)
	return adapters, err
}

// find looks at every device.
func (h *host) find(p *Provider) ([]Adapter, []*Device, error) {
	lib, err := verbs.Load()
	if err != nil {
		return nil, nil, err
	}
	list, err := lib.Devices()
	if err != nil {
		return nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		h.known = make(map[string]*Device)
	}
	var adapters []Adapter
	var devices []*Device
	for _, each := range list {
		if p.config.Device != "" && each.Name != p.config.Device {
			continue
		}
		a, d := h.look(p, lib, each)
		adapters = append(adapters, a)
		devices = append(devices, d)
	}
	if len(adapters) == 0 {
		return nil, nil, fmt.Errorf("there is no device %q on this host: see rdma link show", p.config.Device)
	}
	return adapters, devices, nil
}

func (h *host) look(p *Provider, lib *verbs.Library, each verbs.Device) (Adapter, *Device) {
	a := Adapter{Name: each.Name, Transport: each.Transport.String()}
	d, err := probe(p, lib, each)
	if err != nil {
		a.Unusable = err
		return a, nil
	}
	if known := h.known[each.Name]; known != nil && known.attributes == d.attributes {
		known.mu.Lock()
		known.ports, known.links = d.ports, d.links
		known.mu.Unlock()
		d = known
	} else {
		h.known[each.Name] = d
	}
	a.Driver, a.Firmware, a.Ports, a.Attributes, a.Addresses = d.driver, d.firmware, d.Ports(), d.attributes, d.Addresses()
	up := slices.ContainsFunc(a.Ports, func(p Port) bool { return p.Up })
	switch {
	case !up:
		a.Unusable = fmt.Errorf("%s has no port that is up (%s): plug the cable in, bring its network interface up, or see rdma link show", d.attributes.Name, portStates(a.Ports))
	case len(a.Addresses) == 0:
		a.Unusable = fmt.Errorf("%s has no IP address, which connections are made to: give its network interface one (ip addr add)", d.attributes.Name)
	default:
		a.Unusable = managerPermission()
	}
	return a, d
}

func portStates(ports []Port) string {
	var parts []string
	for _, p := range ports {
		parts = append(parts, fmt.Sprintf("port %d: %s", p.Number, p.State))
	}
	return strings.Join(parts, ", ")
}

// managerPermission tells why the connection manager cannot be used.
func managerPermission() error {
	lib, err := verbs.Load()
	if err != nil {
		return err
	}
	channel, err := lib.NewEventChannel()
	if err != nil {
		return err
	}
	channel.Close()
	return nil
}

// probe opens a device and asks what it can do.
func probe(p *Provider, lib *verbs.Library, each verbs.Device) (d *Device, err error) {
	ctx, err := lib.Open(each.Name, quirks.CallAuto)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := ctx.Close(); err == nil {
			err = closeErr
		}
	}()
	limits, err := ctx.Query()
	if err != nil {
		return nil, err
	}
	d = &Device{provider: p, manager: &manager{provider: p}, driver: ctx.Driver(), firmware: limits.Firmware}
	if d.driver == "" {
		d.driver = strings.TrimRight(each.Name, "0123456789_")
	}
	d.quirks, _ = quirks.Of(d.driver)
	message := uint32(0)
	for number := 1; number <= limits.Ports; number++ {
		port, err := ctx.QueryPort(uint8(number))
		if err != nil {
			return nil, err
		}
		up := port.State == verbs.PortActive
		d.ports = append(d.ports, Port{Number: number, Up: up, State: port.State.String(), Link: port.Link.String(), MTU: port.ActiveMTU.Bytes()})
		d.links = append(d.links, port.Link)
		message = max(message, port.MaxMessage)
	}
	d.attributes = attributes(each, limits, message)
	d.sharedDepth, d.sharedSGE = limits.MaxSRQWR, min(limits.MaxSRQSGE, maxSGE)
	d.attributes.MaxQueueDepth = d.quirks.MaxQueueDepth(d.attributes.MaxQueueDepth)
	if d.probes() {
		d.attributes.MaxQueueDepth--
	}
	d.attributes.KernelBypass = !d.quirks.Software
	if d.attributes.MaxInline, err = probeInline(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// attributes translates a device's limits.
func attributes(each verbs.Device, l verbs.DeviceAttributes, message uint32) rdma.Attributes {
	a := rdma.Attributes{
		Provider: providerName, Name: each.Name,
		MaxSendSGE: min(l.MaxSGE, maxSGE), MaxRecvSGE: min(l.MaxSGE, maxSGE), MaxReadSGE: min(l.MaxSGE, maxSGE),
		MaxQueueDepth: l.MaxQPWR, MaxCompletions: l.MaxCQE,
		MaxReads:   max(1, min(l.MaxQPReadAtomic, l.MaxQPInitiator, 255)),
		MaxMessage: min(int64(message), maxMessage), MaxRegion: int64(min(l.MaxMRSize, maxRegion)),
		MaxPrivateData: maxPrivate, CrossesHosts: true, MemoryAlignment: pageSize,
	}
	if l.MaxSGERead > 0 {
		a.MaxReadSGE = min(a.MaxReadSGE, l.MaxSGERead)
	}
	if message == 0 {
		a.MaxMessage = maxMessage
	}
	if l.MaxSRQ > 0 && l.MaxSRQWR > 0 {
		a.Capabilities |= rdma.CapSharedReceive
	}
	if each.Transport == verbs.TransportIWARP {
		a.Class = rdma.ClassIWARP
		a.MaxReadSGE = 1
		return a
	}
	a.Capabilities |= rdma.CapSendImmediate | rdma.CapWriteImmediate | rdma.CapPolledWrites | rdma.CapReceiverNotReady
	if l.Atomic != verbs.AtomicNone {
		a.Capabilities |= rdma.CapAtomics
	}
	return a
}

// probeInline finds out how much a queue pair takes inline, which no attribute
// tells: the most that the driver makes one for.
func probeInline(ctx *verbs.Context) (most int, err error) {
	pd, err := ctx.AllocPD()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pd.Dealloc()) }()
	cq, err := ctx.CreateCQ(2, 0, nil, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, cq.Destroy()) }()
	try := func(inline int) (int, error) {
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1, SendSGEs: 1, RecvSGEs: 1, Inline: inline})
		if err != nil {
			return 0, err
		}
		return max(qp.Config().Inline, inline), qp.Destroy()
	}
	if _, err := try(0); err != nil {
		return 0, err
	}
	for low, high := 0, 1024; low <= high; {
		middle := (low + high) / 2
		if got, err := try(middle); err == nil {
			most, low = got, max(got, middle)+1
		} else {
			high = middle - 1
		}
	}
	return most, nil
}

// firstPort is the port that queue pairs begin on; the connection decides.
func (d *Device) firstPort() uint8 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.ports {
		if p.Up {
			return uint8(p.Number)
		}
	}
	return 1
}

func (d *Device) linkOf(port uint8) verbs.LinkLayer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := int(port) - 1; i >= 0 && i < len(d.links) {
		return d.links[i]
	}
	return verbs.LinkUnspecified
}

// owns checks that the connection manager has bound id to this device: where
// two share an interface it takes one of them.
func (d *Device) owns(id verbs.CMID, what string) error {
	switch name := id.DeviceName(); name {
	case d.attributes.Name:
		return nil
	case "":
		return fmt.Errorf("%w: %s belongs to no RDMA device", rdma.ErrUnavailable, what)
	default:
		return fmt.Errorf("%w: %s belongs to the device %s", rdma.ErrUnavailable, what, name)
	}
}

// Addresses implements [rdma.RoutedDevice].
func (d *Device) Addresses() []string {
	var list []string
	for _, a := range d.addresses() {
		list = append(list, a.String())
	}
	return list
}

// addresses are the device's IP addresses on ports that are up. They are read
// without the connection manager, whose library would keep the device open.
func (d *Device) addresses() []netip.Addr {
	var list []netip.Addr
	for _, p := range d.Ports() {
		directory := filepath.Join(sysClass, "infiniband", d.attributes.Name, "ports", strconv.Itoa(p.Number))
		state, err := os.ReadFile(filepath.Join(directory, "state"))
		if err != nil || !strings.Contains(string(state), "ACTIVE") {
			continue
		}
		for _, name := range interfaces(d.attributes.Name, p.Number) {
			list = append(list, addressesOf(name)...)
		}
	}
	// IPv4 first, each once.
	slices.SortStableFunc(list, func(a, b netip.Addr) int {
		return boolean(b.Is4()) - boolean(a.Is4())
	})
	var once []netip.Addr
	for _, a := range list {
		if !slices.Contains(once, a) {
			once = append(once, a)
		}
	}
	return once
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// interfaces are the network interfaces of a device's port, and the VLANs, bonds
// and others above them, whose addresses the kernel puts into a RoCE port's table
// of GIDs, too. The table itself has up to 1024 files to read.
func interfaces(device string, port int) []string {
	var names []string
	if name := linkedInterface(device, port); name != "" {
		names = append(names, name)
	}
	// IP over InfiniBand, and adapters whose driver does not name the interface.
	found, _ := filepath.Glob(filepath.Join(sysClass, "net", "*", "device", "infiniband", device))
	for _, f := range found {
		name := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(f))))
		number, err := os.ReadFile(filepath.Join(sysClass, "net", name, "dev_port"))
		if at, bad := strconv.Atoi(strings.TrimSpace(string(number))); err == nil && bad == nil && at != port-1 {
			continue
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i := 0; i < len(names); i++ { // names grows
		above, _ := filepath.Glob(filepath.Join(sysClass, "net", names[i], "upper_*"))
		for _, f := range above {
			if name := strings.TrimPrefix(filepath.Base(f), "upper_"); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Of linux/rdma_netlink.h.
const (
	rdmaNLDev          = 5 << 10
	rdmaNLDevPortGet   = rdmaNLDev | 5
	rdmaNLDevIndex     = 1
	rdmaNLDevPort      = 3
	rdmaNLDevInterface = 50
)

// linkedInterface asks the kernel which interface a port belongs to.
func linkedInterface(device string, port int) string {
	link, err := netlink.RdmaLinkByName(device)
	if err != nil {
		return "" // an old kernel
	}
	request := nl.NewNetlinkRequest(rdmaNLDevPortGet, 0)
	request.AddData(nl.NewRtAttr(rdmaNLDevIndex, nl.Uint32Attr(link.Attrs.Index)))
	request.AddData(nl.NewRtAttr(rdmaNLDevPort, nl.Uint32Attr(uint32(port))))
	answers, err := request.Execute(unix.NETLINK_RDMA, 0)
	if err != nil {
		return "" // an old kernel
	}
	for _, answer := range answers {
		attributes, err := nl.ParseRouteAttr(answer)
		if err != nil {
			continue
		}
		for _, a := range attributes {
			if a.Attr.Type == rdmaNLDevInterface && len(a.Value) >= 4 {
				if i, err := net.InterfaceByIndex(int(nl.NativeEndian().Uint32(a.Value))); err == nil {
					return i.Name
				}
			}
		}
	}
	return ""
}

// interfaceAddresses are the addresses of a network interface that peers reach:
// not those of the link alone.
func interfaceAddresses(name string) []netip.Addr {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	found, err := i.Addrs()
	if err != nil {
		return nil
	}
	var list []netip.Addr
	for _, each := range found {
		prefix, err := netip.ParsePrefix(each.String())
		if err != nil {
			continue
		}
		if a := prefix.Addr().Unmap(); !a.IsLinkLocalUnicast() && !a.IsLoopback() {
			list = append(list, a)
		}
	}
	return list
}

// Reaches implements [rdma.RoutedDevice].
func (d *Device) Reaches(address string) error {
	to, err := netip.ParseAddr(address)
	if err != nil {
		with, portErr := netip.ParseAddrPort(address)
		if portErr != nil {
			return fmt.Errorf("ibverbs: %s: %q: %w: want an IP address", d.attributes.Name, address, rdma.ErrInvalid)
		}
		to = with.Addr()
	}
	to = to.Unmap()
	if _, err := d.source(to); err != nil {
		return fmt.Errorf("ibverbs: %s: %w", d.attributes.Name, err)
	}
	return nil
}

// source is the device's address that connections to an address come from.
func (d *Device) source(to netip.Addr) (netip.AddrPort, error) {
	own := d.addresses()
	if slices.Contains(own, to) {
		return netip.AddrPortFrom(to, 0), nil
	}
	if len(own) == 0 {
		return netip.AddrPort{}, fmt.Errorf("%w: no port with an IP address is up", rdma.ErrUnavailable)
	}
	var why error
	for _, from := range own {
		if from.Is4() != to.Is4() {
			continue
		}
		if err := routed(from, to); err != nil {
			why = errors.Join(why, err)
			continue
		}
		return netip.AddrPortFrom(from, 0), nil
	}
	if why == nil {
		why = fmt.Errorf("it has no address of the same family as %s", to)
	}
	return netip.AddrPort{}, why
}

// routed tells whether packets between two addresses leave through the interface
// that has the first.
func routed(from, to netip.Addr) error {
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
	if err != nil {
		return fmt.Errorf("there is no route from %s to %s: %w", from, to, err)
	}
	var through string
	for _, r := range routes {
		i, err := net.InterfaceByIndex(r.LinkIndex)
		if err != nil {
			continue
		}
		if slices.Contains(interfaceAddresses(i.Name), from) {
			return nil
		}
		through = i.Name
	}
	return fmt.Errorf("packets from %s to %s leave through %s, which is another interface", from, to, through)
}

// forgetContexts makes librdmacm close its own context of a removed device, for which
// the removal waits. librdmacm does so when it finds the device gone. The kernel takes
// a device away step by step, so this tries every 20 ms for up to 5 seconds.
func (d *Device) forgetContexts() {
	lib, err := verbs.Load()
	if err != nil {
		return
	}
	gone := filepath.Join(sysClass, "infiniband", d.attributes.Name)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := lib.Refresh(); err != nil && !errors.Is(err, syscall.ENODEV) {
			d.provider.config.Logger.Warn("ibverbs cannot have librdmacm close a removed device", "device", d.attributes.Name, "error", err)
			return
		}
		if _, err := os.Stat(gone); errors.Is(err, os.ErrNotExist) {
			return
		}
	}
}
