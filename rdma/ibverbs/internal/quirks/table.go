package quirks

// table has the drivers by the name that libibverbs gives them. How they may be
// called was read off rdma-core's sources of August 2026 (providers/*/): most write
// to memory and to the adapter's doorbells alone, under spin locks, both when they
// post and when they poll. What the kernel's software devices do beyond that was
// seen in the lab on Linux 6.1, and is named by the function that does it.
var table = map[string]Driver{
	// The adapters that write to memory and doorbells alone. irdma tells the kernel,
	// too, when it posts to a queue pair that has failed.
	"mlx4":       {Calls: CallNonBlocking},
	"mlx5":       {Calls: CallNonBlocking},
	"irdma":      {Calls: CallNonBlocking},
	"mthca":      {Calls: CallNonBlocking},
	"ocrdma":     {Calls: CallNonBlocking},
	"qedr":       {Calls: CallNonBlocking},
	"erdma":      {Calls: CallNonBlocking},
	"mana":       {Calls: CallNonBlocking},
	"ionic":      {Calls: CallNonBlocking},
	"vmw_pvrdma": {Calls: CallNonBlocking},

	// cxgb4 asks the kernel to ring when the adapter's doorbells are congested.
	"cxgb4": {Calls: CallNonBlockingPoll},
	// bnxt_re waits, and asks the kernel, in a poll, too, while the doorbells are
	// congested.
	"bnxt_re": {Calls: CallBlocking},
	// hns moves a queue pair to its error state when it polls a completion that says so.
	"hns": {Calls: CallBlocking},

	// rxe is the kernel's RoCE in software, drivers/infiniband/sw/rxe.
	"rxe": {
		// It rings through write(2) when it posts to a send queue (rdma-core,
		// providers/rxe/rxe.c, rxe_post_send), and makes the packets and hands them to
		// the interface inside of that call, without waiting. It polls, and posts
		// receives, in rings that it shares with the kernel.
		Calls: CallNonBlockingPoll, ReceivesStayInside: true, BriefPosts: true,
		Software: true,
		// A count of 7 never goes down (rxe_comp.c, COMPST_ERROR_RETRY). Nor is there an
		// event when a request of the peer is refused (rxe_resp.c), so that a side that
		// posts nothing learns of its own failure by the peer alone.
		EndlessRetryCount: 7,
	},

	// siw is the kernel's iWARP in software, drivers/infiniband/sw/siw.
	"siw": {
		// It rings through write(2) when it posts to a send queue (rdma-core,
		// providers/siw/siw.c, siw_post_send), and the kernel may send inside of that
		// call. It polls, and posts receives, in rings that it shares with the kernel.
		Calls: CallNonBlockingPoll, ReceivesStayInside: true,
		Software: true,
		// The keys of a context's objects are places in what it maps, which the kernel
		// deals out from 0 on (rdma_user_mmap_entry_insert). siw's library takes one of
		// them for a failure, SIW_INVAL_UOBJ_KEY of siw-abi.h, 0x90000 or 576 KiB from
		// the beginning: the object that begins there cannot be made, and no error number
		// tells why. A first queue of so many entries of 32 bytes (struct siw_cqe) lies
		// across it.
		FirstQueue: 0x90000/32 + 1,
		// It counts no receive as solicited (siw_qp.c, siw_rqe_complete).
		ArmsForAll: true,
		// What it sends without the application's thread it copies into the header's
		// packet if it is one entry of up to 32 bytes (MAX_HDR_INLINE), and where that
		// crosses a page it exchanges the lengths of the two parts (siw_qp_tx.c,
		// siw_try_1seg). So it does with the answers of all Reads, and with a Send or
		// Write that had to wait for what is before it.
		Garbles: Garbles{Length: 32, Page: 4096},
		// It answers a Read of nothing with as many bytes as the one before it, which
		// ends the connection.
		EmptyReadsAreWrites: true,
		// It hands such pages to TCP as they are (siw_qp_tx.c, siw_qp_prepare_tx).
		BorrowsPages: true,
		// Its siw_accept (siw_cm.c) answers the initiator first and has the socket tell the
		// queue pair of data afterwards. What the initiator sends into that gap stays in
		// the socket until more comes, which is never if it waits for an answer. The gap is
		// short, but a processor may be taken away in it, as those of virtual machines are.
		OverlooksFirst: true,
		// Interrupted in rdma_connect (siw_cm.c, kernel_bindconnect), it resets a connection
		// that the peer may have taken already, and begins anew from the same port. A
		// listener of siw may die of that reset: the new socket still has the listener's
		// callbacks when its end is told, and from then on it refuses everybody.
		ConnectsInCall: true,
	},
}

// unknown is for a driver that is not in the table. Who posts may wait in the
// kernel, but a poll waits for nothing, as ibv_poll_cq(3) has it. If it makes a
// system call after all, the collector waits for that, and no more.
var unknown = Driver{Calls: CallNonBlockingPoll}

// Of returns the row of a driver. Known tells whether the table has it.
func Of(name string) (row *Driver, known bool) {
	if found, ok := table[name]; ok {
		return &found, true
	}
	return &unknown, false
}
