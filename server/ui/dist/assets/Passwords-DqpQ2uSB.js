import{G as e,J as t,L as n,Q as r,T as i,at as a,it as o,j as s,k as c,nt as l,rt as u,tt as d}from"./disclose-version-jL06aB2_.js";import{D as f,S as p}from"./index-D8S1oK_A.js";import{n as m,t as h}from"./Things-DuMuqBv2.js";var g=s(`<div class="page"><div><!> <p class="lede">What the passwords look like that engines make, those of LDAP for instance.</p></div> <!></div>`);function _(s,_){l(_,!0);let v=`sys/policies/password`,y=new f([v,`${v}/*`,`${v}/*/generate`]),b={path:`password`,title:`Password policies`,one:`password policy`,many:`password policies`,gone:`Engines that name it cannot make passwords any more.`,fields:[{name:`policy`,label:`Policy`,kind:`area`,rows:12,required:!0,initial:`length = 20

rule "charset" {
  charset = "abcdefghijklmnopqrstuvwxyz"
}

rule "charset" {
  charset   = "0123456789"
  min-chars = 2
}
`,help:`HCL: a length, and charsets with how many of their characters there must be.`}]};var x=g(),S=e(x),C=e(S);p(C,{text:`Password policies`}),u(2),o(S);var w=t(S,2),T=e=>{{let t=(e,t=a)=>{m(e,{label:`Generate a password`,request:()=>({method:`GET`,path:`${v}/${t()}/generate`}),fields:{password:{title:`Password`,secret:!0}}})},i=r(()=>y.can(`${v}/*/generate`,`read`));h(e,{base:`sys/policies/`,get kind(){return b},get may(){return y},get opens(){return n(i)},more:t,$$slots:{more:!0}})}};i(w,e=>{y.known&&e(T)}),o(x),c(s,x),d()}export{_ as default};