cluster_name = "compose"
ui           = true

listener "tcp" {
  address                         = "0.0.0.0:8200"
  tls_cert_file                   = "/etc/coffer/tls/tls.crt"
  tls_key_file                    = "/etc/coffer/tls/tls.key"
  proxy_protocol_behavior         = "allow_authorized"
  proxy_protocol_authorized_addrs = ["172.30.0.10"] # the balancer
}

storage "raft" {
  path = "/var/lib/coffer"
  retry_join {
    leader_api_addr     = "https://coffer-1:8200"
    leader_ca_cert_file = "/etc/coffer/tls/ca.crt"
  }
  retry_join {
    leader_api_addr     = "https://coffer-2:8200"
    leader_ca_cert_file = "/etc/coffer/tls/ca.crt"
  }
  retry_join {
    leader_api_addr     = "https://coffer-3:8200"
    leader_ca_cert_file = "/etc/coffer/tls/ca.crt"
  }
}
