package quota

// MaxClients is how many clients one rate limit keeps.
const MaxClients = shards * shardClients

// Violations returns how many requests each quota refused on this node, by "<type>/<name>". Those that never
// did are not in it.
func (q *Quotas) Violations() map[string]uint64 {
	m := map[string]uint64{}
	t := q.table.Load()
	if t == nil {
		return m
	}
	for _, of := range []*ruleSet{&t.rates, &t.leases} {
		for _, r := range of.all {
			if n := r.violations.Load(); n > 0 {
				m[r.id()] = n
			}
		}
	}
	return m
}
