! One element under uniaxial strain, there and back, by Abaqus' interface: prints strain, stress and state.
! With an argument it asks for the tangent against differences instead, and ends with 1 where they differ.
!   gfortran umat_element.f90 libmake_model_umat.so
program umat_element
  implicit none
  integer, parameter :: dp = kind(1.0d0), steps = 40, states = 1
  double precision :: stress(6), statev(states), tangent(6, 6), stran(6), dstran(6), time(2), pnewdt
  double precision :: other(6, 6), plus(6), minus(6), kept(states), moved(6), wrong, largest
  integer :: step, j
  stress = 0; statev = 0; stran = 0; time = 0; wrong = 0; largest = 0
  do step = 1, steps
    dstran = 0
    dstran(1) = merge(2.5d-4, -2.5d-4, step <= steps/2)
    dstran(4) = 1.0d-4
    if (command_argument_count() > 0) then
      ! The moved strain is the increment's.
      do j = 1, 6
        plus = stress; kept = statev; moved = dstran; moved(j) = moved(j) + 1d-8
        call increment(plus, kept, other, moved)
        minus = stress; kept = statev; moved(j) = moved(j) - 2d-8
        call increment(minus, kept, other, moved)
        moved = stress; kept = statev
        call increment(moved, kept, tangent, dstran)
        wrong = max(wrong, maxval(abs((plus - minus)/2d-8 - tangent(:, j))))
        largest = max(largest, maxval(abs(tangent)))
      end do
    end if
    call increment(stress, statev, tangent, dstran)
    if (pnewdt < 1) stop 2
    stran = stran + dstran
    time = time + 1
    if (command_argument_count() == 0) print '(8es24.16)', stran(1), stress, statev(1)
  end do
  if (command_argument_count() > 0) then
    print '(a, es10.2)', 'tangent against differences: ', wrong/largest
    if (.not. wrong <= 1d-5*largest) stop 1
  end if
contains
  subroutine increment(s, q, c, de)
    double precision, intent(inout) :: s(6), q(states), c(6, 6)
    double precision, intent(in) :: de(6)
    double precision :: none(6), zero, nothing(1), three(3), turned(3, 3)
    character(len=80) :: material
    none = 0; zero = 0; nothing = 0; three = 0; turned = 0; material = 'J2'
    pnewdt = 1
    call umat(s, q, c, zero, zero, zero, zero, none, none, zero, stran, de, time, 1.0_dp, zero, zero, nothing, &
      nothing, material, 3, 3, 6, states, nothing, 0, three, turned, pnewdt, zero, turned, turned, 1, 1, 1, 1, 1, step)
  end subroutine
end program
