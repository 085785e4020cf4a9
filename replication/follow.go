package replication

type follow struct{}
