//! The calls of etcd's API, by name.

use super::client::{Client, Haste, Refused, Reply};
use super::proto::*;

type Answer<T> = Result<Reply<T>, Refused>;

impl Client {
    pub(crate) async fn range(&self, range: RangeRequest) -> Answer<RangeResponse> {
        self.ask("/etcdserverpb.KV/Range", range, Haste::Patient)
            .await
    }

    pub(crate) async fn delete(&self, delete: DeleteRangeRequest) -> Answer<DeleteRangeResponse> {
        self.ask("/etcdserverpb.KV/DeleteRange", delete, Haste::Urgent)
            .await
    }

    pub(crate) async fn txn(&self, txn: TxnRequest, haste: Haste) -> Answer<TxnResponse> {
        self.ask("/etcdserverpb.KV/Txn", txn, haste).await
    }

    /// A read that the quorum must agree to.
    pub(crate) async fn ask_quorum(&self, range: RangeRequest) -> Answer<RangeResponse> {
        self.ask("/etcdserverpb.KV/Range", range, Haste::Urgent)
            .await
    }

    pub(crate) async fn put(&self, put: PutRequest) -> Answer<PutResponse> {
        self.ask("/etcdserverpb.KV/Put", put, Haste::Patient).await
    }

    pub(crate) async fn grant(&self, ttl: i64) -> Answer<LeaseGrantResponse> {
        let ask = LeaseGrantRequest { ttl };
        self.ask("/etcdserverpb.Lease/LeaseGrant", ask, Haste::Urgent)
            .await
    }

    pub(crate) async fn revoke(&self, id: i64) -> Answer<LeaseRevokeResponse> {
        let ask = LeaseId { id };
        self.ask("/etcdserverpb.Lease/LeaseRevoke", ask, Haste::Urgent)
            .await
    }

    pub(crate) async fn keep_alive(&self, id: i64) -> Answer<LeaseTime> {
        let ask = LeaseId { id };
        self.ask_in_stream("/etcdserverpb.Lease/LeaseKeepAlive", ask)
            .await
    }

    pub(crate) async fn time_left(&self, id: i64) -> Answer<LeaseTime> {
        let ask = LeaseId { id };
        self.ask("/etcdserverpb.Lease/LeaseTimeToLive", ask, Haste::Patient)
            .await
    }

    pub(crate) async fn status(&self) -> Answer<StatusResponse> {
        let ask = StatusRequest {};
        self.ask("/etcdserverpb.Maintenance/Status", ask, Haste::Patient)
            .await
    }
}
