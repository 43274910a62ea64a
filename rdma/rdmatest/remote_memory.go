package rdmatest

// ReadAt and WriteAt reach memory of the other process, for package history.
func (r *remoteRegion) ReadAt(p []byte, offset int64) (int, error) {
	data, err := r.read(int(offset), len(p))
	return copy(p, data), err
}

func (r *remoteRegion) WriteAt(p []byte, offset int64) (int, error) {
	if err := r.write(int(offset), p); err != nil {
		return 0, err
	}
	return len(p), nil
}
