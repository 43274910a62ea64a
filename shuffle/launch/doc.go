// Package launch lets the processes of a job find each other.
//
// Whoever starts them is somebody else's: Slurm's srun, the mpirun of Open MPI or MPICH, an
// indexed Job of Kubernetes, a script. [Find] reads from flags and from the variables that
// these set which process of how many this one is, and where all of them meet; [Meet] tells
// each one the addresses of all others. Where no launcher has been at work, [Local] starts
// the processes on this host and ends them all when one fails.
//
// The package moves no records: an exchange of package shuffle takes the addresses.
package launch
