package hdfs

import "os/user"

// processUser is the superuser of a NameNode that this process runs.
func processUser() (string, error) {
	u, err := user.Current()
	if err != nil {
		return "", err
	}
	return u.Username, nil
}
