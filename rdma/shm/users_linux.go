package shm

// refusal is what the refused peer is told. It names no user, process or socket.
const refusal = "shared memory is for the processes of one user: name the other side's user in AllowUIDs on both sides, " +
	"run both in one user namespace, or use another provider"
